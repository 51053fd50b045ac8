"""The buffers that CUPTI writes its records to, handed over by callbacks that need no GIL.

CUPTI calls back inside a launch and on a thread of its own. Extensions may launch with the GIL
held (those made with pybind11 do, unless they release it), so a callback in Python waits for a
thread that waits for CUPTI: on an H200, two such threads beside two others hang at once. So the
callbacks are twenty instructions of machine code, which allocate a buffer, and put a full one on a
list. Whoever reads the records takes the list when it likes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from functools import cache

from cgtool.devices.cuda.cupti import CuptiUnavailable

BYTES = 258_040
"""Size of a buffer; behind it are the address of the next one of the list, and its valid bytes. No
other tool's buffers have this size: CUPTI may hand over one that a profiler of the program
requested."""
_BEHIND = struct.Struct("<QQ")

_REQUESTED = """
f3 0f 1e fa           endbr64
53                    push rbx
48 89 fb              mov  rbx, rdi             ; void requested(void **buffer, size_t *size,
48 c7 06 {bytes}      mov  qword [rsi], bytes   ;                size_t *records)
48 c7 02 00 00 00 00  mov  qword [rdx], 0       ; as many records as there is room for
bf {allocated}        mov  edi, allocated
48 b8 {malloc}        mov  rax, malloc
ff d0                 call rax
48 89 03              mov  [rbx], rax           ; NULL: CUPTI drops records, and counts them
5b                    pop  rbx
c3                    ret
"""
_COMPLETED = """
f3 0f 1e fa           endbr64                   ; void completed(CUcontext, uint32_t stream,
48 81 f9 {bytes}      cmp  rcx, bytes           ;                void *buffer, size_t size,
75 22                 jne  end                  ;                size_t valid)
49 b9 {first}         mov  r9, &first
4c 89 82 {valid}      mov  [rdx + valid], r8
49 8b 01              mov  rax, [r9]
48 89 82 {bytes}      mov  [rdx + bytes], rax   ; again: buffer->next = first
f0 49 0f b1 11        lock cmpxchg [r9], rdx    ; first = buffer, unless it has changed
75 f2                 jne  again
c3                    ret                       ; end
"""
_TAKE = """
f3 0f 1e fa           endbr64                   ; void *take(void)
49 b9 {first}         mov  r9, &first
31 c0                 xor  eax, eax
49 87 01              xchg [r9], rax            ; first = NULL
c3                    ret
"""
_CODE_COLUMN = 22


@cache
def process_buffers() -> Buffers:
    """The buffers of this process: CUPTI may call back as long as it lives."""
    return Buffers()


class Buffers:
    """Buffers for CUPTI, and those that it has completed."""

    def __init__(self) -> None:
        """Raises CuptiUnavailable where there is no machine code for the processor, or the system
        does not permit code that is made at run time."""
        if platform.machine() not in ("x86_64", "AMD64"):
            raise CuptiUnavailable(f"no callbacks for {platform.machine()} processors")
        libc = ctypes.CDLL(None, use_errno=True)
        self._free = libc.free
        self._first = ctypes.c_void_p()
        """The first buffer of the list."""
        self._code = mmap.mmap(-1, mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        values = {
            "bytes": struct.pack("<I", BYTES),
            "valid": struct.pack("<I", BYTES + 8),
            "allocated": struct.pack("<I", BYTES + _BEHIND.size),
            "malloc": struct.pack("<Q", ctypes.cast(libc.malloc, ctypes.c_void_p).value or 0),
            "first": struct.pack("<Q", ctypes.addressof(self._first)),
        }
        addresses = []
        for text in (_REQUESTED, _COMPLETED, _TAKE):
            addresses.append(start + self._code.tell())
            self._code.write(_assembled(text, values))
        # Never writable and executable at once, which hardened systems refuse.
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), executable):
            reason = os.strerror(ctypes.get_errno())
            raise CuptiUnavailable(f"callbacks are not permitted: {reason}")
        requested, completed, take = addresses
        self.callbacks = ctypes.c_void_p(requested), ctypes.c_void_p(completed)
        """``requested`` and ``completed``, for ``cuptiActivityRegisterCallbacks``."""
        self._take = ctypes.CFUNCTYPE(ctypes.c_void_p)(take)

    def taken(self) -> Iterator[tuple[int, int]]:
        """The address and the valid bytes of each buffer that was completed since the last call.
        A buffer is freed when the next one is requested."""
        address = self._take()
        while address:
            following, valid = _BEHIND.unpack(ctypes.string_at(address + BYTES, _BEHIND.size))
            yield address, valid
            self._free(ctypes.c_void_p(address))
            address = following


def _assembled(text: str, values: dict[str, bytes]) -> bytes:
    code = "".join(line[:_CODE_COLUMN] for line in text.splitlines(keepends=False) if line)
    return bytes.fromhex(code.format(**{name: value.hex() for name, value in values.items()}))
