"""The picture of the README and of the start page: the top of a report on a real training, as a browser shows it."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "assets" / "picture.png"
#: What makes the report.
COMMANDS = (
    'betastar train adult --sensitive race --target "bayes_security>=0.9" --attribute-target "bayes_security>=0.99" --epochs 3 '
    "--lr 0.002 -o runs/adult",
    "betastar report runs/adult",
)
WIDTH, SCALE = 860, 1.5


def made(folder: Path) -> Path:
    """The report, of a training in this folder."""
    for command in COMMANDS:
        _, *words = shlex.split(command)
        subprocess.run([sys.executable, "-m", "betastar.cli.main", *words], cwd=folder, check=True)
    return folder / "runs/adult/report.html"


def photographed(page: Path) -> bytes:
    """The page above its first figure, as PNG with few colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": 1200}, device_scale_factor=SCALE)
        tab.goto(page.as_uri())
        figure = tab.locator("figure").first.bounding_box()
        assert figure is not None
        clip = {"x": 0, "y": 30, "width": WIDTH, "height": figure["y"] - 40}
        shot = Image.open(io.BytesIO(tab.screenshot(clip=clip)))  # type: ignore[arg-type]
        browser.close()
    small = io.BytesIO()
    shot.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(small, "png", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_bytes(photographed(made(Path(folder))))
