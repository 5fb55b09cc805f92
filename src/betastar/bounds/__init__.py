"""Composition: from the steps of a run to bounds and curves. Numpy and scipy only."""
