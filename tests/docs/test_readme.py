"""The README runs, shows what was measured, and every link of the repository's pages leads somewhere."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from docs.hooks import bench, picture, snippets

from .. import browser

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("studies/*/results/*.md"))]


def test_the_readme_runs() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.arange(17.0, 91.0)[:, None], torch.randn(74, 2)], dim=1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    dataset = TensorDataset(x, (x[:, 1] > 0).long())
    given = {"model": module, "optimizer": optimizer, "dataset": dataset, "criterion": torch.nn.CrossEntropyLoss()}
    rows = [f"{20 + i % 50},{30 + i % 17},{'high' if i % 3 else 'low'}" for i in range(600)]
    files = {"people.csv": "\n".join(["age,hours,income", *rows]) + "\n"}
    text = snippets.run((ROOT / "README.md").read_text(), "README.md", given, files)
    assert text.count("{.text .output}") >= 3


def test_the_readme_is_short_and_every_block_is_run() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert set(re.findall(r"^```(\w*)", text, flags=re.M)) == {"python", "bash", ""}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        assert len(block.splitlines()) <= 12


def test_the_picture_is_small_and_its_commands_stand_below_it() -> None:
    below = "".join(f"    {command}\n" for command in picture.COMMANDS)
    assert f"(docs/assets/{picture.PICTURE.name})\n\n{below}" in (ROOT / "README.md").read_text()
    assert 20_000 < picture.PICTURE.stat().st_size < 200_000


@pytest.mark.slow
def test_the_picture_is_the_top_of_a_report(tmp_path: Path) -> None:
    report = picture.made(tmp_path)
    assert "Meets the target bayes_security&gt;=0.99" in report.read_text()
    with browser.chromium():  # or says why there is none
        pass
    shown, committed = (Image.open(BytesIO(one)).size for one in (picture.photographed(report), picture.PICTURE.read_bytes()))
    assert shown[0] == committed[0]
    assert abs(shown[1] - committed[1]) < 60


def test_measured_ratios_are_those_of_the_bench() -> None:
    assert bench.tables()["summary"] in (ROOT / "README.md").read_text(), "run python docs/hooks/bench.py"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_links_to_tests_lead_somewhere() -> None:
    """The site shows the source of each of these tests, and cannot be built without."""
    wanted = {
        found for path in (ROOT / "docs").rglob("*.md") for found in re.findall(r"\(test:([\w/]+\.py)::(\w+)\)", path.read_text())
    }
    assert len(wanted) > 50
    for file, name in wanted:
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), (file, name)


def test_a_snippet_that_fails_is_named() -> None:
    with pytest.raises(snippets.SnippetError, match=r"page.md, line 3: .*0.1.*says '0.2'"):
        snippets.run("# Page\n\n```python\nprint(0.1)  # 0.2: no\n```\n", "page.md")
    with pytest.raises(snippets.SnippetError, match=r"page\.md, line 1: ZeroDivisionError"):
        snippets.run("```python\n1 / 0\n```\n", "page.md")
    with pytest.raises(snippets.SnippetError, match="exit code 2"):
        snippets.run("```bash\nbetastar analyze --noise minus\n```\n", "page.md")
    with pytest.raises(snippets.SnippetError, match="only betastar"):
        snippets.run("```bash\nrm -r .\n```\n", "page.md")


def test_versions_agree() -> None:
    import betastar

    version = betastar.__version__
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
