"""The corpus: programs as users write them, each with what a GPU does to it.

``entries/FAMILY/NAME.py`` defines a factory ``NAME``, with ``device`` as its only parameter or
without one; ``scripts/FAMILY/NAME.py`` captures graphs itself. A comment ``# <- CODE`` marks the
line because of which a capture is refused or a replay computes something else than eager. A program
without a mark is correct: it captures and replays correctly. If either of two lines is a fair
answer, both are marked. ``# <- CODE if FEATURE`` is a mark only with the versions of PyTorch for
which ``FEATURES`` says so. ``# <- CODE (not shown)`` is a mistake that two thousand replays need
not show: a race, a file that changes.

If the loop around an entry has a learning rate scheduler, it is an attribute ``scheduler``.
"""

from __future__ import annotations

import ast
import functools
import re
import zlib
from collections import deque
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIRMS_RULES = "refused_ops"
"""The family with an entry for each rule of ``detectors/op_rules.py``. None of it is held out."""
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Types of statements that contain others."""
_MARK = re.compile(r"# <- ([a-z0-9-]+)(?: if ([a-z-]+))?( \(not shown\))?")


def _recomputes_other_numbers() -> bool:
    """Whether a backward that is a graph of its own cannot draw again what its forward drew.

    PyTorch before 2.10 refuses to set the generator's state in a capture (pull request 162505);
    later, all graphs of a generator read one seed and offset, until each got memory of its own
    (pull request 176752).
    """
    major, minor = (int(part) for part in version("torch").split(".")[:2])
    header = _torch() / "include/ATen/cuda/CUDAGeneratorImpl.h"
    return (major, minor) < (2, 10) or (
        header.is_file() and "CUDAGeneratorCaptureState" in header.read_text()
    )


def _refuses_pinning() -> bool:
    """Whether graphs have no pools of pinned memory (before 2.11; pull request 167507), so that
    allocating it may end a capture."""
    return "_host_emptyCache" not in (_torch() / "cuda/graphs.py").read_text()


def _torch() -> Path:
    """Its folder."""
    spec = find_spec("torch")
    return Path(spec.origin or "" if spec else "").parent


FEATURES = {
    "recomputes-other-numbers": _recomputes_other_numbers,
    "refuses-pinning": _refuses_pinning,
}
"""By the name in a mark: whether it holds for the PyTorch that is installed."""


@dataclass(frozen=True)
class Mark:
    """One marked line."""

    code: str
    line: int
    feature: str | None
    is_shown: bool


@dataclass(frozen=True)
class Program:
    """A program of the corpus. All that is known of it follows from its file."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def family(self) -> str:
        return self.file.parent.name

    @property
    def is_script(self) -> bool:
        return self.file.parent.parent.name == "scripts"

    @property
    def is_holdout(self) -> bool:
        """Whether nobody looks at it, nor at its verdict, while a wrong verdict is being fixed."""
        return self.family != CONFIRMS_RULES and zlib.crc32(self.name.encode()) % 3 == 0

    @property
    def spec(self) -> str:
        """Its name on the command line."""
        return str(self.file) if self.is_script else f"{self.file}:{self.name}"

    @functools.cached_property
    def source(self) -> str:
        return self.file.read_text()

    @functools.cached_property
    def all_marks(self) -> tuple[Mark, ...]:
        """Also those that do not hold for the PyTorch that is installed."""
        return tuple(
            Mark(match[1], number, match[2], not match[3])
            for number, line in enumerate(self.source.splitlines(), 1)
            for match in _MARK.finditer(line)
        )

    @property
    def marks(self) -> list[Mark]:
        return [each for each in self.all_marks if not each.feature or FEATURES[each.feature]()]

    @property
    def is_faulty(self) -> bool:
        return bool(self.marks)

    @functools.cached_property
    def marked_lines(self) -> frozenset[int]:
        """Of each marked statement."""
        marks = self.marks
        statements = _statements(ast.parse(self.source)) if marks else {}
        return frozenset(line for mark in marks for line in statements.get(mark.line, (mark.line,)))


def programs(*wanted: str) -> list[Program]:
    """All programs, or those of these families and names."""
    files = [*sorted(HERE.glob("entries/*/*.py")), *sorted(HERE.glob("scripts/*/*.py"))]
    found = [Program(file) for file in files]
    if not wanted:
        return found
    return [program for program in found if {program.family, program.name} & set(wanted)]


def _statements(tree: ast.AST) -> dict[int, range]:
    """By line, those of the innermost statement; of ``if``, ``for`` and ``def`` the head."""
    found: dict[int, range] = {}
    # From the outside in: an inner statement replaces the one around it.
    pending = deque([tree])
    while pending:
        node = pending.popleft()
        pending.extend(each for each in ast.iter_child_nodes(node) if isinstance(each, _BLOCKS))
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            lines = range(node.lineno, end)
            found.update(dict.fromkeys(lines, lines))
    return found
