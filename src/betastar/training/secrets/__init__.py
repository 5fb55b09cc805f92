"""Secrets: sensitive attributes, and the values of them that an attacker considers."""
