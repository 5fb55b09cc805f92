"""The paper's figures, table and numbers, and three of our own: one small script each."""
