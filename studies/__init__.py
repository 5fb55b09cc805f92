"""Studies that people can repeat.

They are the paper's figures (`paper`), the cost of gap clipping (`gap_clipping`), fine-tuning on tweets (`tweets`), secrets of
`voters`, persons with many ratings (`raters`), and studies as audits play them (`audited`). `results`, `without_privacy` and
`informed_attacker` are what they have in common.
"""
