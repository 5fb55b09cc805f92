"""Games on real training.

In reading order: `games` (the function `betastar.audit.training`), `challenges` and `changed_data` (the records that differ),
`schedule` (which games are played), `one_game` (one training), `attackers`, `evidence`, `canary`, `record_gradients` and
`final_model` (what the attackers see), `verdicts`, `fault_statistics` and `learned_attacks` (what they conclude), `trials` (the
result), `game_folder` (games that are kept).
"""
