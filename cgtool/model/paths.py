"""What lies at a path, where asking may fail.

For a name that is too long, and for one in a folder that may not be entered, the methods of
``Path`` raise (before Python 3.14). Here nothing lies there: whoever opens it then says why not.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether it is a file."""
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: Path) -> bool:
    """Whether it is a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def is_special(path: Path) -> bool:
    """Whether it is a device or a pipe (``/dev/stdout``): nothing there to replace."""
    return os.path.exists(path) and not is_file(path) and not is_dir(path)  # noqa: PTH110
