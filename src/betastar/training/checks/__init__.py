"""What is checked at every step of a monitored training."""
