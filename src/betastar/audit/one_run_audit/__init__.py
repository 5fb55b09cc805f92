"""An audit in one training run, with many canaries."""
