"""Three attackers against the bound, on Adult."""
