"""Secrets: which candidate records an attacker hesitates between."""
