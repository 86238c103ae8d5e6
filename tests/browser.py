"""A real browser, for tests of pages."""

from __future__ import annotations

import shutil
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first has no windows, and so takes two thirds of the processor time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@cache
def chromium() -> Browser:
    """One for all tests of a process; it ends with it."""
    from playwright.sync_api import sync_playwright

    started = sync_playwright().start()
    return started.chromium.launch(
        executable_path=CHROMIUM,
        args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--process-per-site"],
    )
