"""The error of data sets and runs; it imports nothing, so that whoever reads a run folder needs no torch."""


class StudyError(ValueError):
    """What a person gave cannot be studied; the text says why, and what to do."""
