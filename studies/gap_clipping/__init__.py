"""What gap clipping costs: accuracy against proved attribute privacy, on Adult and on the Purchase stand-in."""
