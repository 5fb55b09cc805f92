"""Exact composition: the transform of a step, its inversion, the trade-off curve."""
