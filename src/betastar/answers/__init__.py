"""A question as people ask it, and its answer as one JSON object, for the command line and the page."""
