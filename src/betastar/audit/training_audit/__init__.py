"""Games on real training, with the user's own code."""
