"""The audit: play the attacker's game many times, and see that nobody beats the bound."""

from betastar.audit.games import mechanism
from betastar.audit.verdict import ALARM, Audit, RocPoint

__all__ = ["ALARM", "Audit", "RocPoint", "mechanism"]
