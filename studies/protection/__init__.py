"""What more protection for some people costs, and what it buys when records sit out, on Adult."""
