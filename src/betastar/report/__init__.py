"""A report for people: facts of a run, words, figures, HTML and Markdown."""
