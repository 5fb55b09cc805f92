"""The site builds without a warning, works without a network, and no link of it is dead. Building it runs every snippet."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

from betastar import page as explore
from betastar import plots
from docs.hooks import rooms

ROOT = Path(__file__).parents[2]
MODULES = rooms.modules()


def test_the_site(tmp_path: Path) -> None:
    """One test, so that it is built once, whoever runs the tests; strict: a warning of mkdocs is an error."""
    with warnings.catch_warnings(), patch.dict(os.environ, NO_MKDOCS_2_WARNING="1"):
        warnings.simplefilter("ignore")  # of mkdocs and its plugins; snippets have their own filters
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    pages = {path: Page(path.read_text()) for path in tmp_path.rglob("*.html")}
    every_page_is_built(tmp_path)
    nothing_is_loaded_from_elsewhere(tmp_path, pages)
    every_link_leads_somewhere(tmp_path, pages)
    formulas_are_mathml_and_snippets_show_what_they_print(tmp_path)
    assert (tmp_path / "assets" / "explore.html").read_text("utf-8") == explore.html()


class Page(HTMLParser):
    """Links, anchors and what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        attributes_by_name = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := attributes_by_name.get(name))}
        if tag == "a" and attributes_by_name.get("href"):
            self.links.append(attributes_by_name["href"] or "")
        elif tag in ("script", "img", "iframe", "source", "link", "object", "embed"):
            self.loads += [value for name in ("src", "href", "data", "srcset") if (value := attributes_by_name.get(name))]


def every_page_is_built(site: Path) -> None:
    sources = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    results = [path.relative_to(ROOT).with_suffix(".html") for path in ROOT.glob("studies/*/results/*.md")]
    assert len(results) == 9
    for source in [*sources, *results]:
        built = source.parent / "index.html" if source.name == "README.html" else source
        assert (site / built).exists(), built
    assert not list(site.rglob("*.py"))


def nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for load in page.loads:
            assert not urlsplit(load).netloc, f"{path.name} loads {load}"
            there = path.parent / urlsplit(load).path.lstrip("/")  # the page of missing pages may be anywhere: from the root
            assert load.startswith("data:") or there.exists(), f"{path.name}: {load}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//|@import", path.read_text()), path.name


def every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.netloc or parts.scheme:
                assert parts.scheme == "https", f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[target].anchors | {"__codelineno"}, f"{path.relative_to(site)}: {link}"


def formulas_are_mathml_and_snippets_show_what_they_print(site: Path) -> None:
    theory = (site / "theory.html").read_text()
    assert theory.count("<math") > 100
    assert 'class="arithmatex"' not in theory
    for name in (
        "theory",
        "tutorials/before",
        "tutorials/during",
        "tutorials/after",
        "how-to/protect-an-attribute",
        "how-to/audit",
    ):
        text = (site / f"{name}.html").read_text()
        assert 'class="text output' in text or "output highlight" in text, name
    for name in ("theory", "tutorials/before", "explanation/bayes-security"):
        assert '<figure class="drawn"' in (site / f"{name}.html").read_text()


def test_the_gallery_has_every_figure() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text()
    functions = [one for _, one in inspect.getmembers(plots, inspect.isfunction) if one.__module__ == plots.__name__]
    draws = [one.__name__ for one in functions if "ax" in inspect.signature(one).parameters and one.__name__[0] != "_"]
    figures = set(draws) - {"axes", "legend", "image", "inline", "save"}
    assert {"tradeoff", "heatmap", "guesses", "trials"} <= figures
    for name in figures:
        assert f"plots.{name}(" in text, name


def test_the_architecture_is_drawn_from_the_imports() -> None:
    imports, seen = rooms.arrows(), set(rooms.ROOMS)
    assert {room for pair in imports for room in pair} == seen
    while seen:  # data flows one way: some room is always left that imports no other
        first = {room for room in seen if not any(user == room and used in seen for user, used in imports)}
        assert first, f"{seen} import each other"
        seen -= first
    picture = rooms.picture()
    assert all(f">{room}</text>" in picture for room in rooms.ROOMS)
    shown = rooms.drawn()
    assert picture.count("<title>") == len(shown)
    for user, used in imports:  # each import is an arrow, or a chain of arrows
        reached = {user}
        while used not in reached and (more := {second for first, second in shown if first in reached} - reached):
            reached |= more
        assert used in reached, f"{user} imports {used}"
    table = rooms.table()
    assert all(f"| `{module}` | " in table for module in MODULES)
