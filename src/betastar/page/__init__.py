"""The page of `betastar explore` as one file: it opens without a network and computes the numbers in the browser."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from betastar import files

HERE = Path(__file__).parent
#: The page may load nothing at all, whatever its scripts try.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def html() -> str:
    """The whole file, with its style, its scripts and Plotly."""
    import plotly

    def text(name: str) -> str:
        return (HERE / name).read_text("utf-8")

    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page = text("index.html").replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    page = page.replace('<link rel="stylesheet" href="style.css">', f"<style>\n{text('style.css')}</style>")
    page = re.sub(r'<script src="(\w+\.js)">', lambda match: f"<script>\n{_inside(text(match[1]))}", page)
    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text("utf-8")
    return page.replace("</body>", f'<script type="text/plain" id="plotly">{_inside(script)}</script>\n</body>')


def write_temporary() -> Path:
    """Write the file into a new temporary folder, and say where it is."""
    path = Path(tempfile.mkdtemp(prefix="betastar-")) / "explore.html"
    files.write(path, html())
    return path


def _inside(script: str) -> str:
    """A script that cannot end its element."""
    return script.replace("</script", r"<\/script").replace("<!--", r"<\!--")
