"""A real Chromium for tests: Debian's package, driven through Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _missing() -> str | None:
    """Why there is no browser; None if there is one. Nothing is installed here: `make browser` does that."""
    if find_spec("playwright") is None:
        return "Playwright is not installed: make test sets it up."
    if not CHROMIUM.exists():
        return (
            f"There is no {CHROMIUM}: `make browser` installs it for root on Debian, elsewhere install Chromium there yourself."
        )
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; without one the test is skipped and says why, except with CI=true, where it fails."""
    reason = _missing()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


#: Milliseconds that a page is waited for: a machine that others use may take long.
PATIENCE = 120_000
#: Moves a slider `count` times, `every` so many milliseconds, as fast as a hand does. Tells how often the number changed while it
#: moved, how many milliseconds after the last move the number belonged to that move, and each number until the last is fine.
DRAG = """async ({ name, from, by, count, every }) => {
    const beta = document.getElementById("beta"), slider = document.getElementById(`${name}-slider`), changes = [];
    const watch = new MutationObserver(() => changes.push([performance.now(), beta.textContent, beta.dataset.version]));
    watch.observe(beta, { childList: true, characterData: true, subtree: true });
    const start = performance.now();
    let last = start;
    for (let i = 0; i < count; i += 1) {
        await new Promise((later) => setTimeout(later, Math.max(0, start + i * every - performance.now())));
        slider.value = from + i * by;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        last = performance.now();
    }
    const now = document.body.dataset.version;
    while (beta.dataset.version !== now || beta.dataset.rough !== "false") await new Promise((later) => setTimeout(later, 10));
    watch.disconnect();
    const during = changes.filter(([at]) => at <= last).length;
    const after = changes.find(([, , version]) => version === now)[0] - last;
    return { during, after, texts: changes.map(([, text]) => text) };
}"""


def drag(page: Any, name: str = "noise") -> dict[str, Any]:
    """Two seconds of dragging, 60 events a second."""
    told: dict[str, Any] = page.evaluate(DRAG, {"name": name, "from": 300, "by": 3, "count": 120, "every": 1000 / 60})
    return told


def visit(page: Any, url: str, query: str = "") -> None:
    page.set_default_timeout(PATIENCE)
    page.goto(url + query)
    settle(page)


def settle(page: Any, rest: bool = False) -> None:
    """Until number and charts belong to the last change; rest: and nothing is left to refine."""
    page.wait_for_function(
        """(rest) => {
            const of = (id) => document.getElementById(id).dataset, beta = of("beta");
            const now = document.body.dataset.version;
            const drawn = (id) => (!rest || of(id).rest === "true") && of(id).version === now;
            return beta.rough === "false" && beta.version === now && drawn("epochs-chart") && drawn("tradeoff-chart");
        }""",
        arg=rest,
        timeout=PATIENCE,
    )
