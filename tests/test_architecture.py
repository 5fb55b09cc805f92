"""The arrows between the rooms, and what the core may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "betastar"

#: Every module may import those listed before it, never one after it.
ORDER = [
    "arrays",
    "checks",
    "files",
    "rounding",
    "bound",
    "conversions",
    "step",
    "transform",
    "bounds.exact",
    "bounds.discrete",
    "bounds.interpolate",
    "bounds.grid",
    "bounds.affinity",
    "bounds.paper",
    "bounds.ceiling",
    "bounds.certified",
    "outcome",
    "run",
    "interop",
    "threats",
    "risk",
    "analyze",
    "calibrate",
    "plan",
    "audit.intervals",
    "audit.pairs",
    "audit.verdict",
    "audit.guesses",
    "audit.neighbours",
    "audit.games",
    "training.records",
    "training.purity",
    "training.secret",
    "training.restated",
    "training.kinds",
    "training.encoders",
    "training.gradients",
    "training.diameter",
    "training.wiring",
    "training.shortcut",
    "training.tracer",
    "training.ruler",
    "training.processes",
    "training.sampling_check",
    "training.noise_check",
    "training.step_counter",
    "training.step_checks",
    "training.gradient_check",
    "training.history",
    "training.ledger",
    "training.budget",
    "training.writers",
    "training.inspection",
    "training.listener",
    "training.monitor",
    "training.accountant",
    "training.pull",
    "training.gap",
    "training.for_lightning",
    "training.for_transformers",
    "audit.canary",
    "audit.suspicion",
    "audit.worlds",
    "audit.witness",
    "audit.kept",
    "audit.replay",
    "audit.retrain",
    "audit.chorus",
    "views.plots",
    "studies.seeds",
    "studies.study",
    "studies.sensitive",
    "studies.adult",
    "studies.purchase",
    "studies.table",
    "studies.config",
    "studies.folder",
    "studies.checkpoint",
    "studies.train",
    "studies.gaps",
    "studies.attacked",
    "studies.paper.sheet",
    "studies.paper.fig1",
    "studies.paper.fig2",
    "studies.paper.fig3",
    "studies.paper.tightness",
    "studies.paper.fig5",
    "studies.paper.fig6",
    "studies.paper.fig7",
    "studies.paper.fig8",
    "studies.paper.fig9",
    "studies.paper.table",
    "studies.paper.numbers",
    "studies.paper.ours",
    "studies.paper.reproduce",
    "views.settings",
    "views.targets",
    "views.wording",
    "views.answers",
    "views.printing",
    "views.grids",
    "views.live",
    "views.worker",
    "views.web",
    "views.server",
    "views.commands",
    "views.reading",
    "views.recomputed",
    "views.played",
    "views.facts",
    "views.statement",
    "views.report",
    "views.report_command",
    "views.audit_command",
    "views.audit_training",
    "views.gap_page",
    "views.audit_page",
    "views.cli",
]
#: What a package offers is as far down as its last module.
FRONTS = {"audit": "audit.chorus", "training": "training.gap"}
#: Imports inside a function, against the order: a run or a risk that is made from something else.
DEFERRED = {("run", "interop"), ("training.secret", "training.encoders"), ("training.secret", "training.kinds")}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules of betastar that a file imports, and whether at its top."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "betastar":
            inside = node.module.removeprefix("betastar").removeprefix(".")
            for alias in node.names:
                candidate = f"{inside}.{alias.name}".strip(".")
                found.append((candidate if candidate in ORDER else FRONTS.get(inside, inside), id(node) in top))
        elif isinstance(node, ast.Import):
            room = path.relative_to(SOURCE).parts[0]
            allowed = {"betastar"} if room in ("studies", "views") else set()  # the public names
            assert {alias.name for alias in node.names if alias.name.startswith("betastar")} <= allowed, path
    return found


def test_data_flows_one_way() -> None:
    scripts = SOURCE / "studies" / "data"  # make what is packaged; nobody imports them
    files = {module_name(path): path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" and path.parent != scripts}
    assert sorted(files) == sorted(ORDER), "a new module belongs into ORDER"
    for name, path in files.items():
        for other, at_top in imports(path):
            if (name, other) in DEFERRED:
                assert not at_top
                continue
            assert ORDER.index(other) < ORDER.index(name), f"{name} must not import {other}"


#: What a room may import besides the standard library, NumPy and SciPy.
ROOMS = {
    "audit": {"joblib", "torch", "opacus", "sklearn"},
    "training": {"torch", "opacus", "sklearn", "pandas", "lightning", "transformers"},
    "studies": {"torch", "opacus", "sklearn", "pandas", "joblib", "matplotlib", "rich", "dp_accounting"},
    "views": {"typer", "rich", "matplotlib", "jinja2", "markupsafe", "joblib", "distributed", "fastapi", "pydantic", "starlette"}
    | {"uvicorn", "plotly"},
}


def test_each_room_needs_little() -> None:
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
            room = path.relative_to(SOURCE).parts[0]
            allowed = {"dp_accounting"} if path.name == "interop.py" else ROOMS.get(room, set())
            assert outside <= allowed, f"{path.name} imports {outside}"


def test_importing_is_light() -> None:
    code = "import sys, betastar; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "opacus", "matplotlib", "pandas", "sklearn", "fastapi", "plotly", "typer", "rich", "dp_accounting"):
        assert f"'{heavy}'" not in loaded, heavy
    for heavy in ("scipy.optimize", "scipy.stats", "scipy.signal", "scipy.integrate"):
        assert f"'{heavy}'" not in loaded, heavy


def test_every_module_is_short() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name
