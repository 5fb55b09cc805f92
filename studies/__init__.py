"""Studies that people can repeat, with the package's public names only. They are not in the wheel.

Each is one command, `python -m studies.NAME`, in a clone with an editable install, and one page in its folder `results`:
`paper` (the paper's figures, table and numbers), `gap_clipping` (what it costs), `protection` (what more of it for some people
costs), `tweets` (with LoRA), `voters` (their secrets), `raters` (persons with many ratings), `audits` (attackers against the
bound) and `one_run_power`. `purchase` is a data set of two of them. They have `trainings`, `pages` and `command` in common.
"""

from importlib.util import find_spec

missing = [name for name in ("torch", "pandas", "sklearn", "joblib", "matplotlib") if find_spec(name) is None]
if missing:
    raise SystemExit(f'studies: {missing[0]} is not installed. In the clone: python -m pip install -e ".[studies]"')
