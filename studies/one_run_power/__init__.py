"""The power of audits in one run."""
