"""Plug-ins: modules of other people that add a threat, a method or a metric to the vocabulary when they are imported.

In Python, `import` does it. The command and the processes of the page import what the environment variable BETASTAR_PLUGINS
names: modules, or files that end with .py, with commas between them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

VARIABLE = "BETASTAR_PLUGINS"


def load() -> None:
    """Import the plug-ins that the environment names. A name that cannot be imported is a ValueError."""
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        _import(name)


def _import(name: str) -> None:
    path = Path(name).resolve()
    if not name.endswith(".py"):
        module = name
    elif path.is_file():
        module = path.stem
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # other processes, too, find the module by its name
    else:
        raise ValueError(f"{VARIABLE} must name modules or files that exist, got {name!r}.")
    try:
        plugin = import_module(module)
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}"
        raise ValueError(f"{VARIABLE} must name modules that can be imported, got {name!r}: {why}") from problem
    if module != name and Path(plugin.__file__ or "").resolve() != path:
        raise ValueError(f"{VARIABLE} must name files whose names no other module has, got {name!r}; rename it.")
