"""Games on the mechanism itself, with the best attacker there is."""
