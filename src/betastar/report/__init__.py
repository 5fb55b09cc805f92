"""The report about a run or a setting.

In reading order: `facts` (what is known; `setting` and `recomputed` read and check it), `statement` and `audits` (the
words), `report` (the figures and the file).
"""
