"""Games on the mechanism itself with the best attacker there is.

`games` plays, and `worst_pairs` says against which gradients.
"""
