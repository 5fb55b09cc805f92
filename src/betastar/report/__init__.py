"""The report about a run or a setting.

In reading order: `facts` (what is known; `setting` and `recomputed` read and check it), `statement` and `audits` (the
words), `report` (the figures and the file). `audit_page`, `gap_clipping_page`, `tweets_page`,
`voters_page` and `raters_page` write pages of the site; `study_pages` is what they have in common.
"""
