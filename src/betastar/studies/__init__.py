"""Studies that people can repeat.

They are the paper's figures (`paper`), the cost of gap clipping (`gap_clipping`), fine-tuning on tweets (`tweets`), and studies
as audits play them (`audited`).
"""
