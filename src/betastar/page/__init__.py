"""The page of `betastar explore` as one file: it opens without a network and computes the numbers in the browser."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from betastar import files

HERE = Path(__file__).parent
#: The page may load nothing at all, whatever its scripts try.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|function|class) (\w+))", re.MULTILINE)


def sources() -> dict[str, str]:
    """The scripts of the page by their names; those for the browser stand in for those that ask a server."""
    return {path.name: path.read_text("utf-8") for path in sorted(HERE.glob("*.js"))}


def bundle(scripts: dict[str, str], first: str) -> str:
    """A script and those that it imports as one expression, what the first one exports: each becomes a function."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        text = scripts[name]
        for _, imported in IMPORT.findall(text):
            add(imported)
        exported = EXPORT.findall(text)
        text = IMPORT.sub(lambda match: f"const {{{match[1]}}} = {_variable(match[2])};\n", text)
        inside = EXPORT.sub("", text)
        parts[name] = f"// {name}\nconst {_variable(name)} = (() => {{\n{inside}return {{ {', '.join(exported)} }};\n}})();\n"

    add(first)
    return '(() => {\n"use strict";\n' + "".join(parts.values()) + f"return {_variable(first)};\n}})();\n"


def html() -> str:
    """The whole file."""
    page = (HERE / "index.html").read_text("utf-8")
    style = f"<style>\n{(HERE / 'style.css').read_text('utf-8')}</style>"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    scripts = (
        f"<script>\n{_inside(bundle(sources(), 'app.js'))}</script>\n"
        f'<script type="text/plain" id="plotly">{_inside(_plotly().read_text("utf-8"))}</script>\n'
    )
    for before, after in (
        ('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}'),
        ('<link rel="stylesheet" href="style.css">', style),
        ('<script type="module" src="app.js"></script>\n', ""),
        ("</body>", f"{scripts}</body>"),
    ):
        assert page.count(before) == 1, before
        page = page.replace(before, after)
    return page


def export(path: Path, force: bool) -> int:
    """Write the file; the number of its bytes."""
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"--export must end with .html, got {str(path)!r}.")
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"--export {str(path)!r} is there already; choose another name, or write over it with --force.")
    if not path.parent.is_dir():
        raise ValueError(f"--export must be in a folder that exists, got {str(path)!r}.")
    content = html().encode()
    files.write(path, content, private=False)
    return len(content)


def _variable(name: str) -> str:
    return f"{name.removesuffix('.js')}_script"


def _inside(script: str) -> str:
    """A script that cannot end its element."""
    return script.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _plotly() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def write_temporary() -> Path:
    """Write the file into a new temporary folder; where it is."""
    path = Path(tempfile.mkdtemp(prefix="betastar-")) / "explore.html"
    files.write(path, html())
    return path
