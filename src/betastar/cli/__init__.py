"""The command `betastar`."""
