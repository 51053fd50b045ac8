"""Private names of PyTorch are declared in one module, and nowhere else in cgtool."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cgtool
from cgtool.devices.cuda.capabilities import probe
from cgtool.torch_compat import private
from cgtool.torch_compat.private import PRIVATE_NAMES, MissingPrivateName, PatchPoint

_ROOT = Path(cgtool.__file__).parent
_FILES = sorted(
    path for path in _ROOT.rglob("*.py") if path.relative_to(_ROOT).parts[0] != "torch_compat"
)
_PYTHONS_OWN = {
    "_getframe", "_current_frames", "_exit", "_make", "_fields", "_replace", "_asdict",
    "_Unpickler",
}  # fmt: skip
_MODULE = re.compile(r"torch(\.\w+)*\.(_[a-zA-Z]\w*)(\.\w+)*")
_DECLARED = {name.path.rpartition(".")[2] for name in PRIVATE_NAMES} | {
    *private.MODULE_TABLES, *private.FORWARD_HOOKS, *private.BACKWARD_HOOKS,
    *private.CAPTURE_HEALTH_CHECKS, private.COMPILED_MODULE,
}  # fmt: skip
"""Declared in ``private``: not to be spelled anywhere else, in a string neither."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _root(node: ast.expr) -> list[str]:
    """``["torch", "ops", "aten"]`` of an attribute chain; [] for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _own_names(tree: ast.Module) -> set[str]:
    """Names that the file defines itself: functions, classes, fields, variables."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each private name of PyTorch in a file."""
    tree = ast.parse(source)
    own = _own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _MODULE.fullmatch(alias.name):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                if _MODULE.fullmatch(f"{node.module}.{alias.name}"):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            chain = _root(node)
            # A name below torch.ops is an op's, which its schema makes public.
            if chain[:1] == ["aten"] or node.attr in _PYTHONS_OWN:
                continue
            if chain[:1] == ["torch"] or node.attr not in own:
                yield node.lineno, ".".join(chain) or node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            private_string = node.value in _DECLARED and _is_private(node.value)
            if private_string or _MODULE.fullmatch(node.value):
                yield node.lineno, repr(node.value)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_no_private_name_of_pytorch(path: Path) -> None:
    private = [f"{path}:{line}: {name}" for line, name in private_names(path.read_text())]
    assert not private, "declare it in cgtool/torch_compat/private.py: " + ", ".join(private)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._current_autograd_node()",
        "import torch\nwith torch._C.DisableTorchFunction(): pass",
        "from torch.utils import _pytree as pytree",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "import torch._dynamo",
        "key = tensor.untyped_storage()._cdata",
        "def f(node): return node._sequence_nr()",
        'schema = getattr(func, "_schema", None)',
        'patches.set(torch.cuda, "_initialized", None)',
        'module = sys.modules.get("torch._dynamo")',
    ],
)
def test_the_test_sees_a_private_name(source: str) -> None:
    assert list(private_names(source))


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys._getframe(1)",
        "class A:\n    def _own(self): self._own()",
        "aten = torch.ops.aten\naten._foreach_add",
        "torch.cuda.current_stream()",
    ],
)
def test_the_test_lets_public_and_own_names_pass(source: str) -> None:
    assert not list(private_names(source))


def test_this_pytorch_has_every_name() -> None:
    built_for_gpu = torch.version.cuda is not None
    missing = [n.path for n in PRIVATE_NAMES if not n.present and (built_for_gpu or not n.gpu)]
    assert not missing


def test_every_name_says_what_is_lost_without_it() -> None:
    assert len({name.path for name in PRIVATE_NAMES}) > 40
    assert all(name.part and name.without for name in PRIVATE_NAMES)


def test_a_missing_name_is_an_error_when_it_is_used() -> None:
    known = list(PRIVATE_NAMES)
    try:
        function = private._private("tests", "torch._C._no_such_name", "nothing is lost")
        assert PRIVATE_NAMES[-1].present is False
    finally:
        PRIVATE_NAMES[:] = known
    with pytest.raises(MissingPrivateName, match=r"has no `torch\._C\._no_such_name`: nothing is"):
        function()


def test_readers_of_fields() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert private.storage_key(tensor.untyped_storage()) == private.storage_key(
        tensor.detach().untyped_storage()
    )
    first, second = tensor.exp().grad_fn, tensor.exp().grad_fn
    assert private.sequence_number_of(second) == private.sequence_number_of(first) + 1
    assert private.schema_of(torch.ops.aten.add.Tensor).name == "aten::add"
    assert private.schema_of(len) is None
    assert private.packet_of(torch.ops.aten.add.Tensor) is torch.ops.aten.add


def test_patch_points_name_what_is_there() -> None:
    points = [value for value in vars(private).values() if isinstance(value, PatchPoint)]
    assert len(points) > 8
    optional = {name.path.rpartition(".")[2] for name in PRIVATE_NAMES if name.gpu}
    assert all(hasattr(*point) for point in points if point.name not in optional)


def test_doctor_has_a_row_for_each_part_that_lacks_names(monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = [row for row in probe() if row.name.startswith("PyTorch internals")]
    assert (row.name, row.state) == ("PyTorch internals", "available")
    name = next(name for name in PRIVATE_NAMES if name.path == "torch.UntypedStorage._cdata")
    monkeypatch.setattr(private, "PRIVATE_NAMES", [name._replace(present=False)])
    [row] = [row for row in probe() if row.name.startswith("PyTorch internals")]
    assert (row.name, row.state) == (f"PyTorch internals: {name.part}", "degraded")
    assert row.how == f"no {name.path}: {name.without}"
