"""A real Chromium for tests: Debian's package, driven through Playwright."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Why there is no browser; installs Debian's if that is possible."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed"
    with (Path(tempfile.gettempdir()) / "betastar-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side: one installs, the other waits until it has
        return None if CHROMIUM.exists() else _install()


def _install() -> str | None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "there is no /usr/bin/chromium, and it can be installed by root on Debian only"
    for words in (["install", "-y", "chromium"], ["update"], ["install", "-y", "chromium"]):  # lists may be missing or old
        done = subprocess.run(["apt-get", "-o", "DPkg::Lock::Timeout=300", *words], capture_output=True, text=True)
        if CHROMIUM.exists():
            return None
    return f"Chromium cannot be installed: {done.stderr.strip()[-200:]}"


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
