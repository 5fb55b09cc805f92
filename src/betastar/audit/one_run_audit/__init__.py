"""An audit in one run with many canaries.

`games` and `mechanism_games` play it, `guesses` counts, and `verdict` judges by `curve_p_value` and `epsilon_delta`.
"""
