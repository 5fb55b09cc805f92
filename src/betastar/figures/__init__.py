"""Figures of risks and runs."""
