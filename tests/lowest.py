"""The lowest versions that pyproject.toml allows its users, as lines for pip: `make oldest` installs and tests them.

The tools that run the tests are the locked ones; so is torch, of which other versions come with gigabytes for GPUs, unless the
first argument names a version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "html5lib", "pyarrow")
#: Extras for those who work on betastar itself.
INTERNAL = ("docs", "dev")


def declared() -> dict[str, str]:
    """Each package that users of betastar need, and which versions of it: {"opacus": ">=1.6,<1.7"}."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra not in INTERNAL]
    lines = [line for part in [project["dependencies"], *extras] for line in part if not line.startswith("betastar[")]
    ranges: dict[str, str] = {}
    for line in lines:
        name, versions = re.fullmatch(r"([\w-]+)(.*)", line).groups()  # type: ignore[union-attr]
        assert ranges.setdefault(name, versions) == versions, f"{name} has two ranges in pyproject.toml"
    return ranges


def lowest(name: str) -> str:
    """The lower bound of a declared package."""
    return re.search(r">=([\d.]+)", declared()[name]).group(1)  # type: ignore[union-attr]


def locked() -> dict[str, str]:
    return dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split())


if __name__ == "__main__":
    chosen = {name: lowest(name) for name in declared()} | {name: locked()[name] for name in TOOLS}
    chosen["torch"] = sys.argv[1] if len(sys.argv) > 1 else locked()["torch"]
    print("\n".join(f"{name}=={version}" for name, version in chosen.items()))
