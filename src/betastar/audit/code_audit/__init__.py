"""A test of training code: the same training on two data sets that differ in one record, with the same random numbers.

In reading order: `replays` (the function `betastar.audit.code`), `neighbours` (the data sets that are compared), `recording` (one
training, and what it releases), `loader_watch` (the batches that it draws), `comparison` (two trainings, step by step),
`noise_tests` (the noise and the sampling against the claim), `findings` (the result).
"""
