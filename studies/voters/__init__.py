"""Voters of 2016 and their secrets: what a model of an opinion, or of the vote, tells about a respondent."""
