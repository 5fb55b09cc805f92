"""Persons with many ratings: what a recommender tells about them, and what it costs to protect them."""
