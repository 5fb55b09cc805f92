"""The error of a report."""

from betastar.runs.reading import StudyError


class ReportError(StudyError):
    """What was given cannot be reported on; the text says why, and what is expected."""
