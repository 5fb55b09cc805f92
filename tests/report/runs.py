"""Small runs to report on, and what every report must be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import html5lib

from betastar.report.report import write
from betastar.risk import METRICS
from betastar.runs.config import Config
from betastar.runs.loop import train

from ..trained_runs import people


def trained(folder: Path, sensitive: str = "age", **options: Any) -> Path:
    people(400).rename(columns={"age": sensitive}).to_csv(folder / "people.csv", index=False)
    fixed: dict[str, Any] = {"drop": ("name",), "epochs": 2, "noise_multiplier": 6.0, "batch_size": 160}
    return train(Config(str(folder / "people.csv"), "rich", sensitive, **fixed, **options), folder / "run").path


def change(path: Path, **entries: Any) -> None:
    """Set entries of a JSON file; None takes one out."""
    changed = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def without_monitor(folder: Path) -> None:
    for name in ("metrics.jsonl", "distances.csv", "ledger.csv"):
        (folder / name).unlink()
    change(folder / "status.json", secret=None, values=None, label=None)
    path = folder / "epochs.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in entry.items() if k != "exact"}) + "\n" for entry in entries))


def html(source: Path, output: Path, **options: Any) -> str:
    """The report, checked for what every report must be."""
    write(source, output, **options)
    return checked(output.read_text(encoding="utf-8"))


def checked(text: str) -> str:
    """Valid, small, and asking for nothing outside of itself."""
    html5lib.HTMLParser(strict=True).parse(text)
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert len(text.encode()) < 3_000_000
    document = html5lib.parse(text, namespaceHTMLElements=False)
    for element in document.iter():
        assert str(element.tag).split("}")[-1] not in ("script", "link", "iframe", "object", "embed", "img", "base", "form")
        for name, value in element.attrib.items():
            assert not str(name).lower().startswith("on")
            if str(name).split("}")[-1] in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith("#")
    assert re.findall(r"url\((?!#)|@import|https?:", text) == []
    return text


def beta(value: float) -> str:
    """β* as people see it."""
    return METRICS["bayes_security"].rounded(float(value))


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the table in the HTML."""
    table = text[text.index('id="numbers"') :]
    row_cells = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    return {name.replace("&#39;", "'"): re.findall(r"<td>(.*?)</td>", cells) for name, cells in row_cells}
