"""The corpus: workloads as users write them, each with what a GPU does to it.

``entries/THEME.py`` has factories, ``scripts/*.py`` are scripts that capture graphs themselves. A
trailing comment ``# guilty: REASON`` marks the line because of which a capture is refused or a
replay computes something else than eager. An entry without a marked line captures and replays
correctly. If either of two lines is a fair answer, both are marked. ``# guilty if FEATURE: REASON``
is a mark only with the versions of PyTorch for which ``FEATURES`` says so.

A factory is a public function at the top of a file without parameters, or with ``device`` alone.
What stands between it and the factory above it belongs to it: a module that it uses, for example.
If the loop around the code has a learning rate scheduler, it is an attribute ``scheduler``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
WRONG = HERE / "wrong.txt"
"""Entries whose verdict is known to be wrong; `benchmarks/corpus.py --record` writes them."""
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""What a statement can be inside of."""
_GUILTY = re.compile(r"# guilty(?: if ([a-z-]+))?: (.+)")


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
NOT_SHOWN = frozenset(
    (
        # Races, which small tensors and a busy host do not show on every GPU.
        "functional_updates:features_freed_while_a_stream_reads",
        "pinned_memory:gate_by_a_pinned_flag",
        "simulations_and_streams:event_recorded_too_early",
        "scripts:event_recorded_too_early",
        # Files and free memory, which nothing changes meanwhile.
        "less_direct_reads:config_reload",
        "reviewed_projects:chunks_by_free_memory",
        "reviewed_projects:configuration_file",
        # A line of text that no replay writes.
        "schedules_of_a_step:asserts_finite_losses_now_and_then",
        "schedules_of_a_step:compares_with_the_best_now_and_then",
        "schedules_of_a_step:keeps_a_number_now_and_then",
        "schedules_of_a_step:writes_a_line_now_and_then",
        # Boxes of which all match those before.
        "speech_vision_and_play:tracks_get_the_next_identities",
        # An average of what has converged.
        "steps_of_a_recipe:average_with_a_warm_up",
    )
)
"""Entries whose mistake two thousand replays need not show."""
RAISES = frozenset(("scripts:model_never_moved",))
"""Entries that PyTorch ends with an exception at the marked line, graphs or not."""


@dataclass(frozen=True)
class Entry:
    """A factory of the corpus, or a script."""

    theme: str
    name: str
    file: Path
    guilty: tuple[range, ...]
    """Lines of each marked statement; none for an innocent entry."""
    reasons: tuple[str, ...]
    depends: bool = False
    """Whether the version of PyTorch decides."""

    @property
    def is_script(self) -> bool:
        return self.theme == "scripts"

    @property
    def key(self) -> str:
        return f"{self.theme}:{self.name}"

    @property
    def spec(self) -> str:
        """What the command line calls it."""
        return str(self.file) if self.is_script else f"{self.file}:{self.name}"

    def is_guilty_line(self, line: int | None) -> bool:
        return any(line in lines for lines in self.guilty)


def entries(*wanted: str) -> list[Entry]:
    """All entries, or those of these themes, names and keys."""
    files = [*sorted(HERE.glob("entries/*.py")), *sorted(HERE.glob("scripts/*.py"))]
    found = [entry for file in files for entry in _entries_in(file)]
    if not wanted:
        return found
    return [each for each in found if {each.theme, each.name, each.key} & set(wanted)]


def entries_of(theme: str) -> tuple[Entry, ...]:
    """Those of one file, without reading the others."""
    return _entries_in(HERE / "entries" / f"{theme}.py")


@functools.cache
def _entries_in(file: Path) -> tuple[Entry, ...]:
    return (_script(file),) if file.parent.name == "scripts" else tuple(_factories(file))


def _factories(file: Path) -> Iterator[Entry]:
    source = file.read_text()
    marks, dependent, tree = marks_of(source), _dependent(source), ast.parse(source)
    statements = _statements(tree)
    start = 1
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _is_factory(node):
            end = node.end_lineno or node.lineno
            own = {line: reason for line, reason in marks.items() if start <= line <= end}
            lines = tuple(statements.get(line, range(line, line + 1)) for line in own)
            depends = any(start <= line <= end for line in dependent)
            yield Entry(file.stem, node.name, file, lines, tuple(own.values()), depends)
            start = end + 1


def _is_factory(node: ast.FunctionDef) -> bool:
    names = [argument.arg for argument in node.args.args]
    public = not node.name.startswith("_") and not node.decorator_list
    return public and names in ([], ["device"]) and node.args.vararg is None


def _script(file: Path) -> Entry:
    source = file.read_text()
    marks = marks_of(source)
    statements = _statements(ast.parse(source)) if marks else {}
    lines = tuple(statements.get(line, range(line, line + 1)) for line in marks)
    return Entry("scripts", file.stem, file, lines, tuple(marks.values()))


def marks_of(source: str) -> dict[int, str]:
    """Line and reason of each marker that holds."""
    return {
        number: match[2]
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _GUILTY.search(line)) and (match[1] is None or FEATURES[match[1]]())
    }


def _dependent(source: str) -> list[int]:
    """The lines with markers that hold with some versions of PyTorch."""
    found = enumerate(source.splitlines(), 1)
    return [number for number, line in found if (match := _GUILTY.search(line)) and match[1]]


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
