"""The browser that tests of the page and its benchmark use."""

from __future__ import annotations

import importlib.util
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Its command; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def no_browser() -> str | None:
    """Why no page can be opened; None if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None if find_browser() else f"none of {', '.join(NAMES)} is installed"
