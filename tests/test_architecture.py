"""What flows where is a contract of import-linter (`make lint`); here, what each folder and module needs from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from docs.hooks import rooms

SOURCE = Path(__file__).parents[1] / "src" / "betastar"
#: What a folder or module may import besides the standard library, NumPy and SciPy.
OUTSIDE = {
    "dpsgd.py": {"dp_accounting"},  # from_dp_event, with the extra `interop`
    "audit": {"joblib", "torch", "opacus", "sklearn"},
    "training": {"torch", "opacus", "sklearn", "pandas", "lightning", "transformers", "rich", "cryptography", "joblib"},
    "runs": {"torch", "opacus", "pandas", "rich", "joblib", "sklearn", "safetensors"},
    "display.py": {"rich"},
    "plots.py": {"matplotlib"},
    "report": {"matplotlib", "jinja2", "markupsafe"},
    "page": {"plotly"},
    "cli": {"typer", "rich", "click", "joblib", "distributed"},
}


def test_the_contract_names_everything() -> None:
    """import-linter refuses what is in no layer; the picture has a box for each layer but the lowest, the helpers."""
    names = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_") and path.name != "py.typed"}
    assert names == {name for layer in rooms.layers() for name in layer}
    assert set(rooms.ROOMS) == {rooms.room(layer[0]) for layer in rooms.layers()[1:]}


def test_each_folder_needs_little() -> None:
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").split(".")[0]}
            elif isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            else:
                continue
            outside = {root for root in roots if root not in sys.stdlib_module_names} - {"betastar", "numpy", "scipy"}
            place = path.relative_to(SOURCE).parts[0]
            allowed = OUTSIDE.get(place, set())
            assert outside <= allowed, f"{path.relative_to(SOURCE)} imports {outside - allowed}"


def test_studies_use_public_names_only() -> None:
    public = {"betastar", "betastar.audit", "betastar.plots", "betastar.rounding", "betastar.runs", "betastar.training"}
    for path in (SOURCE.parents[1] / "studies").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            else:
                continue
            used = {name for name in names if name.split(".")[0] == "betastar"}
            assert used <= public, f"{path.name} imports {used - public}"


def test_importing_is_light() -> None:
    code = "import sys, betastar; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "opacus", "matplotlib", "pandas", "sklearn", "plotly", "typer", "rich", "dp_accounting"):
        assert f"'{heavy}'" not in loaded, heavy
    for heavy in ("scipy.optimize", "scipy.stats", "scipy.signal", "scipy.integrate"):
        assert f"'{heavy}'" not in loaded, heavy
