"""Kernel functions of a graph: name, resources, parameter layout, occupancy. Each read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cgtool.devices.cuda.driver import check, cu
from cgtool.model.capture import Function

_MAX_PARAMETERS = 1024
"""Far more than any kernel has; ends the walk if a driver never says INVALID_VALUE."""
_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE: there is no parameter of this number."""


@dataclass
class FunctionTable:
    """Functions in order of first use."""

    functions: list[Function] = field(default_factory=list)
    _indices: dict[int, int] = field(default_factory=dict)
    _layouts: dict[int, tuple[tuple[int, int], ...] | None] = field(default_factory=dict)
    _occupancy: dict[tuple[int, int, int], int | None] = field(default_factory=dict)

    def resolve(self, params: Any) -> Any | None:
        """The CUfunction of kernel node parameters; ``kern`` is used when ``func`` is NULL."""
        if int(params.func):
            return params.func
        if int(params.kern):
            code, function = cu.cuKernelGetFunction(params.kern)
            return function if int(code) == 0 else None
        return None

    def index(self, function: Any) -> int:
        """Index into ``functions``."""
        handle = int(function)
        known = self._indices.get(handle)
        if known is None:
            known = self._indices[handle] = len(self.functions)
            self.functions.append(self._read(function))
        return known

    def layout(self, function: Any) -> tuple[tuple[int, int], ...] | None:
        """(offset, size) in bytes of each parameter (cuFuncGetParamInfo, driver 12.4); None where
        the driver or its bindings have no such call."""
        handle = int(function)
        if handle not in self._layouts:
            self._layouts[handle] = _read_layout(function)
        return self._layouts[handle]

    def active_blocks(self, function: Any, threads: int, dynamic_shared_bytes: int) -> int | None:
        """Blocks that fit on one multiprocessor at once; None when the driver cannot say."""
        key = (int(function), threads, dynamic_shared_bytes)
        if key not in self._occupancy:
            code, blocks = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                function, threads, dynamic_shared_bytes
            )
            self._occupancy[key] = int(blocks) if int(code) == 0 else None
        return self._occupancy[key]

    def _read(self, function: Any) -> Function:
        attribute = cu.CUfunction_attribute

        def ask(name: str) -> int | None:
            code, value = cu.cuFuncGetAttribute(
                getattr(attribute, f"CU_FUNC_ATTRIBUTE_{name}"), function
            )
            return int(value) if int(code) == 0 else None

        name = check("cuFuncGetName", cu.cuFuncGetName(function))
        return Function(
            name=name.decode(errors="replace") if name else "?",
            registers=ask("NUM_REGS"),
            static_shared_bytes=ask("SHARED_SIZE_BYTES"),
            local_bytes=ask("LOCAL_SIZE_BYTES"),
            max_threads_per_block=ask("MAX_THREADS_PER_BLOCK"),
            binary_version=ask("BINARY_VERSION"),
            parameter_bytes=tuple(size for _, size in self.layout(function) or ()),
        )


def _read_layout(function: Any) -> tuple[tuple[int, int], ...] | None:
    query: Any = getattr(cu, "cuFuncGetParamInfo", None)
    if query is None:
        return None
    found: list[tuple[int, int]] = []
    for position in range(_MAX_PARAMETERS):
        try:
            code, offset, size = query(function, position)
        except RuntimeError:
            # The bindings know the call, the driver does not.
            return None
        if int(code) == _INVALID_VALUE:
            break
        if int(code) != 0:
            return None
        found.append((int(offset), int(size)))
    return tuple(found)
