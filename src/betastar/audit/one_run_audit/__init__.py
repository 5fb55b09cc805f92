"""An audit in one training run with many canaries: `games` trains, and `guesses` judges."""
