"""Numbers and trainings that are kept bit for bit; see freeze.py."""
