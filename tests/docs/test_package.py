"""The wheel and the source distribution install into an empty environment, and the core runs there by itself."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from .. import lowest

ROOT = Path(__file__).parents[2]
ADULT = ["analyze", "--noise", "3.51", "--batch", "256", "--records", "26048", "--epochs", "20", "--json"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both, the wheel made from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=environment)


def closure(names: list[str]) -> dict[str, Distribution]:
    """The distributions that these need, themselves included; extras are left out."""
    distributions: dict[str, Distribution] = {}
    while names:
        name = names.pop()
        if name.lower() in distributions:
            continue
        distributions[name.lower()] = one = distribution(name)
        needed = [text for text in one.requires or [] if ";" not in text]
        names += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in needed]
    return distributions


def test_what_is_in_them(built: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(built["wheel"]).namelist()
    pages = ("page/index.html", "page/curves.js", "report/templates/report.html.j2")
    for name in ("py.typed", *pages):
        assert f"betastar/{name}" in wheel
    assert "betastar/runs/data/adult.csv.xz" in wheel
    assert all(name.startswith("betastar") for name in wheel)
    with tarfile.open(built["sdist"]) as archive:
        inside = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/betastar/analyze.py"} <= inside
    assert built["sdist"].stat().st_size < 3_000_000


def test_the_core_runs_in_an_empty_environment(built: dict[str, Path], tmp_path: Path) -> None:
    """What the core needs is linked from here, and nothing else: no torch, no matplotlib, no Plotly."""
    venv.create(tmp_path, with_pip=False)
    place = next((tmp_path / "lib").glob("python*")) / "site-packages"
    core = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in distribution("betastar").requires or [] if "extra" not in text]
    assert sorted(core) == ["numpy", "rich", "scipy", "typer"]
    for one in closure(core).values():
        for top in {file.parts[0] for file in one.files or [] if file.parts[0] != ".."}:
            source = Path(str(one.locate_file(top)))
            if source.exists() and not (place / top).exists():
                (place / top).symlink_to(source)
    python = tmp_path / "bin" / "python"
    installed = run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", built["wheel"]])
    assert installed.returncode == 0, installed.stderr
    check(tmp_path)


def test_what_is_declared_is_what_is_tested() -> None:
    """The lock lies within the declared ranges; each package that is imported is declared; one lowest Python, in all places."""
    declared, locked = lowest.declared(), {name.lower(): version for name, version in lowest.locked().items()}
    for name, versions in declared.items():
        assert ">=" in versions, f"{name} has no lower bound"
        assert locked[name] in SpecifierSet(versions), name
    assert "<" in declared["opacus"], "its internals are read, and they change with minor versions"
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
    owners = packages_distributions()
    owned = {owners[name][0].lower() for name in imported - set(sys.stdlib_module_names) - {"betastar"}}
    assert owned - set(declared) == {"markupsafe"}  # it comes with Jinja2
    python = re.search(r'requires-python = ">=(3\.\d+)"', (ROOT / "pyproject.toml").read_text()).group(1)  # type: ignore[union-attr]
    assert f">= ({python.replace('.', ', ')})" in (ROOT / "Makefile").read_text()
    assert f"Python {python} or later" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_extra_of_the_studies_has_what_they_import() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = " ".join([*extras["studies"], *extras["training"], *extras["report"], *extras["interop"], "numpy scipy typer rich"])
    owners = packages_distributions()
    for path in (ROOT / "studies").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for root in (
                {(module or "").split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"betastar", "studies"}
            ):
                assert owners[root][0].lower() in needed, f"{path.name} imports {root}"
    assert "betastar[training,interop]" in extras["studies"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_they_install_from_a_package_index(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    installed = run([tmp_path / "bin" / "python", "-m", "pip", "install", "--quiet", built[kind]])
    assert installed.returncode == 0, installed.stderr
    check(tmp_path)


def check(environment: Path) -> None:
    finished = run([environment / "bin" / "betastar", *ADULT])
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["bayes_security"]["lower"] == pytest.approx(0.8993517, abs=1e-6)
    python = environment / "bin" / "python"
    where = run([python, "-c", "import betastar; print(betastar.__file__)"]).stdout
    assert str(environment) in where
    assert run([python, "-c", "import torch"]).returncode != 0
    missing = run([environment / "bin" / "betastar", "report", "-"])
    assert missing.returncode != 0
    assert "Traceback" not in missing.stderr, missing.stderr
