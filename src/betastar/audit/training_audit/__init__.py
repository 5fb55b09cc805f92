"""Games on real training.

In reading order: `games` (the function `betastar.audit.training`), `challenges` (the record that differs), `schedule`
(which games are played), `one_game` (one training), `attackers` and `canary` (what the attackers see), `verdicts` and
`fault_statistics` (what they conclude), `trials` (the result), `game_folder` (games that are kept).
"""
