"""Certified composition: runs on grids of losses, from above and from below, and attackers who adapt."""
