"""The report about a run or a setting.

In reading order: `facts` (what is known; `recomputed` checks it), `statement` (the words), `report` (the figures and the file),
and `model_card` (the card that goes with the model).
"""
