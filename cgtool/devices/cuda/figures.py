"""The figures of all tensors that an op has written, in one launch.

Each op of PyTorch takes ten microseconds on the host, and so does each tensor that is made. So a
kernel of our own reads the memory where it lies, and writes to memory of the host.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda.driver import check, cu
from cgtool.devices.values import FACTOR, FIGURES, PART, Figures
from cgtool.torch_compat.private import current_raw_stream

_SOURCE = r"""
__device__ double number_at(long long address, int type, long long at) {
  const void* memory = (const void*)address;
  switch (type) {
    case 0: return ((const float*)memory)[at];
    case 1: return ((const double*)memory)[at];
    case 2: {
      float wide;
      asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(((const unsigned short*)memory)[at]));
      return wide;
    }
    case 3: return __uint_as_float((unsigned)((const unsigned short*)memory)[at] << 16);
    case 4: return ((const signed char*)memory)[at];
    case 5: return ((const short*)memory)[at];
    case 6: return ((const int*)memory)[at];
    case 7: return (double)((const long long*)memory)[at];
    default: return ((const unsigned char*)memory)[at];
  }
}

extern "C" __global__ void figures(const long long* tensors, double* rows) {
  // Of each tensor: address, type, numbers, words, bytes of a word.
  const long long* tensor = tensors + 5 * blockIdx.y;
  const long long address = tensor[0], count = tensor[2], words = tensor[3];
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  double own[7] = {infinity, -infinity, 0, 0, 0, 0, 0};
  long long digest = 0;
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
       at < count || at < words; at += step) {
    if (at < count) {
      const double number = number_at(address, (int)tensor[1], at);
      if (number != number) {
        own[5] += 1;
      } else if (number == infinity || number == -infinity) {
        own[6] += 1;
      } else {
        own[0] = number < own[0] ? number : own[0];
        own[1] = number > own[1] ? number : own[1];
        own[2] += number;
        own[3] += number * number;
        own[4] += number == 0;
      }
    }
    if (at < words) {
      const long long word = tensor[4] == 4 ? (long long)((const int*)address)[at]
                                            : (long long)((const unsigned char*)address)[at];
      const long long odd = ((at % PART + 1) * FACTOR) | 1;
      digest += word * (odd ^ (odd >> 29)) * (2 * (at / PART) + 1);
    }
  }
  __shared__ double all[7][THREADS];
  __shared__ long long digests[THREADS];
  const int me = threadIdx.x;
  for (int figure = 0; figure < 7; ++figure) all[figure][me] = own[figure];
  digests[me] = digest;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me < half) {
      const int other = me + half;
      all[0][me] = all[0][other] < all[0][me] ? all[0][other] : all[0][me];
      all[1][me] = all[1][other] > all[1][me] ? all[1][other] : all[1][me];
      for (int figure = 2; figure < 7; ++figure) all[figure][me] += all[figure][other];
      digests[me] += digests[other];
    }
  }
  if (me == 0) {
    double* row = rows + 8 * ((long long)blockIdx.y * gridDim.x + blockIdx.x);
    for (int figure = 0; figure < 7; ++figure) row[figure] = all[figure][0];
    row[7] = __longlong_as_double(digests[0]);
  }
}
"""
TYPES = {
    torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 4,
    torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.uint8: 8, torch.bool: 8,
    torch.complex64: 0, torch.complex128: 1,
}  # fmt: skip
_THREADS = 256
_NUMBERS = 16
"""That a thread looks at before there is a second block."""
_BLOCKS = 64
_TENSORS = 512
"""At once."""


class Memory(NamedTuple):
    """A tensor whose elements follow each other."""

    address: int
    bytes: int
    dtype: torch.dtype

    @property
    def numbers(self) -> int:
        """How many; of a complex one, two."""
        size = self.dtype.itemsize // (2 if self.dtype.is_complex else 1)
        return self.bytes // size

    @property
    def word_bytes(self) -> int:
        """As ``cgtool.devices.values``."""
        return 1 if self.bytes % 4 else 4


class FiguresKernel:
    """The kernel, loaded in the current context. Raises RuntimeError if it cannot be compiled."""

    def __init__(self) -> None:
        major, minor = torch.cuda.get_device_capability()
        self._module = check(
            "cuModuleLoadData", cu.cuModuleLoadData(_compiled(f"sm_{major}{minor}"))
        )
        self._function = check(
            "cuModuleGetFunction", cu.cuModuleGetFunction(self._module, b"figures")
        )
        # The device reads and writes memory of the host that is pinned.
        self._pinned = (
            torch.empty(_TENSORS * 5, dtype=torch.int64, device="cpu", pin_memory=True),
            torch.empty(
                _TENSORS * _BLOCKS * FIGURES, dtype=torch.float64, device="cpu", pin_memory=True
            ),
        )
        tensors, rows = self._pointers = tuple(each.data_ptr() for each in self._pinned)
        self._tensors = _bytes_at(tensors, self._pinned[0].nbytes).cast("q")
        self._rows = _bytes_at(rows, self._pinned[1].nbytes).cast("d")
        self._digests = self._rows.cast("B").cast("q")

    def read(self, memory: Sequence[Memory], stream: int) -> list[Figures]:
        """The figures of each, when the stream has come to this. Raises DriverError."""
        if len(memory) > _TENSORS:
            return self.read(memory[:_TENSORS], stream) + self.read(memory[_TENSORS:], stream)
        fields, longest = list[int](), 1
        for each in memory:
            numbers, word_bytes = each.numbers, each.word_bytes
            words = each.bytes // word_bytes
            fields += (each.address, TYPES[each.dtype], numbers, words, word_bytes)
            longest = max(longest, numbers, words)
        blocks = min(-(-longest // (_THREADS * _NUMBERS)), _BLOCKS)
        self._tensors[: len(fields)] = array("q", fields)
        arguments = self._pointers, (ctypes.c_void_p, ctypes.c_void_p)
        count, threads = len(memory), _THREADS
        check(
            "cuLaunchKernel",
            cu.cuLaunchKernel(
                self._function, blocks, count, 1, threads, 1, 1, 0, stream, arguments, 0
            ),
        )
        check("cuStreamSynchronize", cu.cuStreamSynchronize(stream))
        row = blocks * FIGURES
        return [self._figures(slice(at * row, (at + 1) * row)) for at in range(count)]

    def _figures(self, of: slice) -> Figures:
        """Of the blocks of a tensor."""
        rows, digests = self._rows[of].tolist(), self._digests[of].tolist()
        least, largest = min(rows[::FIGURES]), max(rows[1::FIGURES])
        total, squares, zeros, nans, infinities = (
            math.fsum(rows[figure::FIGURES]) for figure in range(2, FIGURES - 1)
        )
        digest = sum(digests[FIGURES - 1 :: FIGURES])
        return Figures(least, largest, total, squares, zeros, nans, infinities, digest)


@cache
def figures_kernel(_device: int) -> FiguresKernel | None:
    """That of the current device; None where there is no NVRTC, or no memory."""
    try:
        return FiguresKernel()
    except (ImportError, RuntimeError):
        return None


def _is_mapped(tensor: torch.Tensor) -> bool:
    """Engines that sleep take the memory from behind addresses, which a kernel must not read."""
    first = tensor.data_ptr()
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MAPPED
    answers = (
        cu.cuPointerGetAttribute(attribute, address)
        for address in (first, first + tensor.nbytes - 1)
    )
    return all(not int(error) and bool(mapped) for error, mapped in answers)


def digests(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """``Figures.digest`` of contiguous tensors on the current device; None for others, and for
    memory that is not mapped."""
    device = torch.cuda.current_device()
    kernel = figures_kernel(device)
    here = [
        each
        for each in tensors
        if kernel is not None and each.device.index == device and each.nbytes and _is_mapped(each)
    ]
    types = torch.int32, torch.uint8
    memory = [Memory(each.data_ptr(), each.nbytes, types[each.nbytes % 4 > 0]) for each in here]
    read = [] if kernel is None or not here else kernel.read(memory, current_raw_stream(device))
    found = {each.address: figures.digest for each, figures in zip(memory, read, strict=True)}
    return [found.get(each.data_ptr()) for each in tensors]


def _bytes_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _compiled(architecture: str) -> bytes:
    """Raises RuntimeError."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

    def value(result: tuple[Any, ...]) -> Any:
        error, *values = result
        if int(error):
            raise RuntimeError(f"NVRTC: {error}")
        return values[0] if values else None

    constants = f"#define PART {PART}LL\n#define FACTOR {FACTOR}LL\n#define THREADS {_THREADS}\n"
    source = (constants + _SOURCE).encode()
    program = value(nvrtc.nvrtcCreateProgram(source, b"figures.cu", 0, [], []))
    value(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()]))
    binary: bytes = b" " * value(nvrtc.nvrtcGetCUBINSize(program))
    value(nvrtc.nvrtcGetCUBIN(program, binary))
    value(nvrtc.nvrtcDestroyProgram(program))
    return binary
