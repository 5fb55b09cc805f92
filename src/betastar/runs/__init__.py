"""`betastar train`: one training loop, and the folder of a run."""
