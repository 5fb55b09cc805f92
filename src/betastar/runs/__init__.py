"""`betastar train`: one training loop, and one folder for each run.

In reading order: `config` (what is asked for), `private_training` (the loop), `loop` (a run from its start to its end),
`folder` (the files of a run) with `status`, `checkpoint`, `json_object` and `reading`.
"""
