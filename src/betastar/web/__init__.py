"""The page, and the JSON API behind it."""
