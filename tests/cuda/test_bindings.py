"""Every call of the driver, as the installed cuda-bindings document it. No driver is needed: which
functions are called, with how many arguments and results, is read from cgtool's source."""

from __future__ import annotations

import ast
import ctypes
import re
import textwrap
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from cgtool.devices.cuda import driver, nodes
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.model.capture import Edge, Tensor

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cgtool", "benchmarks", "tests/gpu")
_FUNCTION = re.compile(r"cu[A-Z]\w+")
_RETURN = re.compile(r"^(\w+) : (.+)$", re.MULTILINE)
_SIGNATURE = re.compile(r"\w+\((.*)\)")


def is_function(name: str) -> bool:
    return _FUNCTION.fullmatch(name) is not None


def parameters(name: str) -> tuple[int, int]:
    """The least and the most arguments of a function of the driver."""
    signature = _SIGNATURE.match(getattr(bindings, name).__doc__)
    assert signature, name
    given = [each for each in signature[1].split(", ") if each]
    return sum("=" not in each for each in given), len(given)


def results(name: str) -> list[str]:
    """The types of what a function of the driver returns after its error code."""
    _, _, text = getattr(bindings, name).__doc__.partition("Returns\n")
    text, _, _ = textwrap.dedent(text).partition("\nSee Also\n")
    return [type_ for name, type_ in _RETURN.findall(text) if name != "CUresult"]


class Uses(ast.NodeVisitor):
    """The names of the bindings that a file uses."""

    def __init__(self, file: Path) -> None:
        self.required: set[str] = set()
        self.optional: set[str] = set()
        """Looked for at run time."""
        self.arguments: list[tuple[str, int]] = []
        """Of each call of a function by its name."""
        self.unpacked: list[tuple[str, int, bool]] = []
        """Of each such call: how many results, and whether more are permitted."""
        self.visit(ast.parse(file.read_text()))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = ast.unparse(node)
        if re.fullmatch(r"cu(\.\w+)+", path):
            self.required.add(path.removeprefix("cu."))
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and is_function(node.value):
            self.required.add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Names of the library's own functions, with their version, are not the bindings'."""

    def visit_Call(self, node: ast.Call) -> None:
        called, arguments = ast.unparse(node.func), node.args
        if called in ("getattr", "hasattr") and len(arguments) > (called == "getattr") + 1:
            name = arguments[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self.optional.add(name.value)
                return
        if called.startswith("cu.") and is_function(called[3:]):
            self.arguments.append((called[3:], len(arguments)))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        value, taken = node.value, 0
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "check":
            value, taken = value.args[1], 1  # the error code
        name = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        target = node.targets[0]
        if name.startswith("cu.") and is_function(name[3:]) and isinstance(target, ast.Tuple):
            is_open = any(isinstance(each, ast.Starred) for each in target.elts)
            self.unpacked.append((name[3:], len(target.elts) - is_open + taken, is_open))
        self.generic_visit(node)


@pytest.fixture(scope="module")
def uses() -> dict[str, Uses]:
    """By file."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    every = {str(file.relative_to(ROOT)): Uses(file) for file in files}
    return {name: found for name, found in every.items() if found.required | found.optional}


def test_every_name_is_one_of_the_bindings(uses: dict[str, Uses]) -> None:
    every = [(file, path) for file, found in uses.items() for path in found.required]
    assert ("cgtool/devices/cuda/driver.py", "cuGetErrorName") in every
    unknown = []
    for file, path in every:
        try:
            attrgetter(path)(bindings)
        except AttributeError:
            unknown.append((file, path))
    assert unknown == []


def test_calls_have_the_arguments_and_the_results_of_the_bindings(uses: dict[str, Uses]) -> None:
    calls = [(file, *call) for file, found in uses.items() for call in found.arguments]
    assert ("cgtool/devices/cuda/driver.py", "cuGraphGetNodes", 2) in calls
    for file, name, count in calls:
        least, most = parameters(name)
        assert least <= count <= most, (file, name)
    unpacked = [(file, *call) for file, found in uses.items() for call in found.unpacked]
    assert ("cgtool/devices/cuda/driver.py", "cuGraphGetNodes", 3, False) in unpacked
    for file, name, count, is_open in unpacked:
        returned = 1 + len(results(name))
        assert count <= returned if is_open else count == returned, (file, name)


ARGUMENT = ctypes.c_uint64(0x1010)
ARGUMENTS = (ctypes.c_void_p * 2)(ctypes.addressof(ARGUMENT), ctypes.addressof(ARGUMENT))


class Driver:
    """Answers each call as documented: two of what it lists, and empty structs."""

    def __init__(self, **values: Any) -> None:
        self._values = values
        """What a function returns, if that is not made up from its documentation."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(bindings, name)
        if not is_function(name):
            return real

        def call(*arguments: Any) -> tuple[Any, ...]:
            least, most = parameters(name)
            assert least <= len(arguments) <= most
            success = bindings.CUresult.CUDA_SUCCESS
            if name in self._values:
                return success, *self._values[name]
            return success, *map(made_up, results(name))

        return call


def made_up(type_: str) -> Any:
    """A value of a type that the documentation names."""
    if type_.lower().startswith("list["):
        made = getattr(bindings, name_in(type_))
        return [made(1), made(2)] if made is bindings.CUgraphNode else [made(), made()]
    if type_ == "bytes":
        return b"name"
    if type_ in ("int", "Any"):
        return 2
    made = getattr(bindings, name_in(type_))
    if made is bindings.CUstreamCaptureStatus:
        return made.CU_STREAM_CAPTURE_STATUS_ACTIVE
    if made is bindings.CUstreamCaptureMode:
        return made.CU_STREAM_CAPTURE_MODE_GLOBAL
    value = made()
    if made is bindings.CUDA_MEMCPY3D:
        device = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        value.srcMemoryType = value.dstMemoryType = device
    return value


def name_in(type_: str) -> str:
    found = re.search(r"~\.(\w+)", type_)
    assert found, type_
    return found[1]


class Library:
    """The driver itself, called by ``ctypes``: its structs are those of the bindings."""

    def __init__(self, types: dict[int, int], edges: int = 2) -> None:
        self._types, self._edges = types, edges
        """Of nodes 1 and 2, and how many edges there are."""
        self._kernel = bindings.CUDA_KERNEL_NODE_PARAMS_v2()
        self._kernel.func = bindings.CUfunction(7)
        self._kernel.kernelParams = ctypes.addressof(ARGUMENTS)
        self._kernel.gridDimZ, self._kernel.blockDimX, self._kernel.sharedMemBytes = 3, 32, 48

    def cuGraphGetNodes(self, _graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._types)
        if nodes is not None:
            nodes[:] = list(self._types)
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
        kind._obj.value = self._types[node.value]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, _node: Any, params: Any) -> int:  # noqa: N802
        ctypes.memmove(params, self._kernel.getPtr(), ctypes.sizeof(params._obj))
        return 0

    def cuGraphGetEdges_v2(self, _graph: Any, *columns: Any) -> int:  # noqa: N802
        *columns, count = columns
        if columns[0] is None:
            count._obj.value = self._edges
        elif not self._edges:
            return 1  # as the driver does
        else:
            data = bindings.CUgraphEdgeData()
            data.from_port, data.type = 1, bindings.CUgraphDependencyType(1)
            ctypes.memmove(columns[2], data.getPtr(), 8)
            for column in columns[:2]:
                column[:] = 1, 2
        return 0


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def answer(**values: Any) -> None:
        made = Driver(**values)
        for module in (driver, nodes):
            monkeypatch.setattr(module, "cu", made)

    answer()
    return answer


def layout(function: Any, position: int) -> tuple[Any, ...]:
    """Of two parameters of eight bytes."""
    if position < 2:
        return bindings.CUresult.CUDA_SUCCESS, position * 8, 8
    return bindings.CUresult.CUDA_ERROR_INVALID_VALUE, None, None


@pytest.mark.parametrize("type_", list(bindings.CUgraphNodeType), ids=lambda type_: type_.name)
def test_nodes_of_each_type_are_read(type_: Any, answer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver, "_library", lambda: Library({1: int(type_), 2: int(type_)}))
    monkeypatch.setattr(nodes.cu, "cuFuncGetParamInfo", layout, raising=False)
    book = AddressBook(Trace(), (), [Tensor("x", "input", 0x1000, 64)], ())
    reader = nodes.GraphReader(nodes.FunctionTable(), book)
    read = reader.read(bindings.CUgraph(1), 0)
    name = nodes.NODE_TYPES.get(int(type_), f"type_{int(type_)}")
    read_nodes = read.nodes([(None, None, None)] * 2)
    assert [node.type for node in read_nodes] == [name, name]
    assert not any("not readable" in node.detail for node in read_nodes if node.detail)
    assert read.edges == (Edge(0, 0, from_port=1, type=1), Edge(1, 1))
    if name == "kernel":
        [kernel, _] = [node.kernel for node in read_nodes]
        assert kernel is not None
        assert (kernel.grid, kernel.block) == ((0, 0, 3), (32, 0, 0))
        assert kernel.dynamic_shared_bytes == 48
        assert [(each.parameter, each.tensor) for each in kernel.pointers] == [(0, 0), (1, 0)]
        [function] = reader.functions.functions
        assert (function.name, function.parameter_bytes) == ("name", (8, 8))


def test_a_type_that_nobody_knows_leaves_the_other_nodes_readable(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_library", lambda: Library({1: 99, 2: 5}))
    reader = nodes.GraphReader(nodes.FunctionTable(), AddressBook(Trace(), (), (), ()))
    read = reader.read(bindings.CUgraph(1), 0)
    assert [each["type"] for each in read.fields] == ["type_99", "empty"]


def test_a_node_that_cannot_be_read_says_why(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({1: 0, 2: 5}, edges=0)
    monkeypatch.setattr(library, "cuGraphKernelNodeGetParams_v2", lambda *_: 1)
    monkeypatch.setattr(driver, "_library", lambda: library)
    reader = nodes.GraphReader(nodes.FunctionTable(), AddressBook(Trace(), (), (), ()))
    read = reader.read(bindings.CUgraph(1), 0)
    assert read.edges == ()
    [kernel, empty] = read.fields
    assert "cuGraphKernelNodeGetParams" in kernel["detail"]
    assert empty == {"type": "empty"}


def test_the_graph_of_a_capture_and_memory_are_asked_for(answer: Any) -> None:
    assert driver.captured_nodes(0) == 2
    assert driver.free_bytes() == 2
    idle = bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    answer(
        cuStreamGetCaptureInfo=(idle, 0, None, [], 0),
        cuStreamGetCaptureInfo_v3=(idle, 0, None, [], [], 0),
    )
    assert driver.captured_nodes(0) == 0
