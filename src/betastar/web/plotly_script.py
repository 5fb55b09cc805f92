"""The script of Plotly, which its Python package contains."""

from __future__ import annotations

from pathlib import Path


def plotly_script() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
