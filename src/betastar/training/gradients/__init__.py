"""Clipped gradients of many variants of a record, and the distances between them."""
