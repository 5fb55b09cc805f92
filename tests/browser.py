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
