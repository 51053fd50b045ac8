"""Names for the cells of a notebook.

ipykernel compiles each cell as a temporary file that is never written, named by a hash of its text
(``/tmp/ipykernel_12/629435271.py``). Readers know it by its number.
"""

from __future__ import annotations

import linecache
import re
import sys

_TEMPORARY = re.compile(r"(.*/ipykernel_\d+/)(\d+)\.py")
_NAMED = re.compile(r".*/ipykernel_\d+/(cell In\[\d+\]|notebook cell \d+)")


def named_by_cell(file: str) -> str:
    """The name of a file as lines are recorded: of a cell ``/tmp/ipykernel_12/cell In[3]``, or
    ``notebook cell 629435271`` if its number is not known. Its lines are known to this process."""
    if "/ipykernel_" not in file or not (match := _TEMPORARY.fullmatch(file)):
        return file
    folder, hash_of_text = match.groups()
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    name = folder + (f"cell {label[1]}" if label else f"notebook cell {hash_of_text}")
    if file in linecache.cache:
        linecache.cache[name] = linecache.cache[file]
    return name


def is_cell(file: str) -> bool:
    """Whether a recorded line is in a cell."""
    return _NAMED.fullmatch(file) is not None
