"""A curve to answers: metrics, analysis, calibration, planning."""
