"""What happens while mkdocs builds the site: snippets run, formulas become MathML, tests and rooms are shown as they are."""

from __future__ import annotations

import ast
import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from betastar import page as explore  # noqa: E402
from docs.hooks import bench, rooms, snippets  # noqa: E402

#: A link to a test, [words](test:test_exact.py::test_range_and_error), leads to its source on this page.
TEST = re.compile(r"\(test:([\w/]+)\.py::(\w+)\)")
TESTS = "reference/mathematics.md"
#: Letters that browsers show in their own shape only if they are characters of their own.
LETTERS = {r"\mathcal N": "𝒩", r"\mathbb E": "𝔼"}
TAG = re.compile(r"\\tag\{(\d+)\}")


#: A file of the repository that a page shows whole.
FILE = re.compile(r"<!-- file: (\S+) -->")
#: The page of `betastar explore` as one file, which a page of the site shows.
EXPLORE = "assets/explore.html"


#: A link from a page of docs/ to the results of a study. In the repository it leads one folder up, which the site does not have.
TO_STUDY = re.compile(r"\.\./((?:\.\./)*studies/\w+/results/)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, EXPLORE, content=explore.html()))
    for path in sorted(ROOT.glob("studies/*/results/*")):
        if path.suffix in (".md", ".png", ".svg"):
            files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    study = source.startswith("studies/")
    markdown = markdown.replace("(../../../docs/", "(../../../") if study else TO_STUDY.sub(r"\1", markdown)
    if source == TESTS:
        return markdown + _tests()
    if "<!-- rooms -->" in markdown:
        markdown = markdown.replace("<!-- rooms -->", rooms.picture() + "\n\n" + rooms.table())
    markdown = re.sub(r"<!-- bench: (\w+) -->", lambda match: bench.tables()[match[1]], markdown)
    markdown = FILE.sub(lambda match: f"```py\n{(ROOT / match[1]).read_text('utf-8')}```", markdown)
    up = "../" * source.count("/")
    markdown = TEST.sub(lambda match: f"({up}{TESTS}#{_anchor(*match.groups())})", markdown)
    return snippets.run(markdown, source)


def on_page_content(content: str, **_: Any) -> str:
    """\\(…\\) and \\[…\\], as arithmatex leaves them, to MathML."""

    def formula(match: re.Match[str]) -> str:
        block = match[1] == "div"
        text = html.unescape(match[2]).strip()[2:-2]
        latex, number = TAG.sub("", text), TAG.search(text)
        for command, letter in LETTERS.items():
            latex = latex.replace(command, letter)
        found = convert(latex, display="block" if block else "inline")
        shown = f"<span>({number[1]})</span>" if number else ""
        return f'<div class="formula">{found}{shown}</div>' if block else found

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', formula, content, flags=re.DOTALL)


def _anchor(file: str, name: str) -> str:
    return f"{file.replace('/', '-')}-{name}"


def _tests() -> str:
    """The source of every test that a page links to; a test that is not there stops the build."""
    wanted = {found for path in (ROOT / "docs").rglob("*.md") for found in TEST.findall(path.read_text())}
    parts = []
    for file, name in sorted(wanted):
        text = (ROOT / "tests" / f"{file}.py").read_text()
        nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
        if not nodes:
            raise LookupError(f"tests/{file}.py has no {name}")
        first = min([nodes[0].lineno, *(one.lineno for one in nodes[0].decorator_list)])
        code = "\n".join(text.splitlines()[first - 1 : nodes[0].end_lineno])
        title = name.removeprefix("test_").replace("_", " ")
        parts.append(f"### {title} {{ #{_anchor(file, name)} }}\n\n`tests/{file}.py`\n\n``` {{.python}}\n{code}\n```\n")
    return "\n" + "\n".join(parts)
