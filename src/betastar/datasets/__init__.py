"""Records to train on: Adult, Purchase, and tables of one's own."""
