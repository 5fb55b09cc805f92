"""Figures of risks, runs and audits; `plots` has them all."""
