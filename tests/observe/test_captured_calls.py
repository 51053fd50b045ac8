"""The sizes of a call have the names of what is called."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from cgtool.observe.captured_calls import name_of, objects_of, sizes_of
from cgtool.observe.frames import callers, locals_of


class Decoder(nn.Module):
    def forward(self, x, y=None, **more):
        return torch.relu(x) + 1


def joined(left, *others):
    return left + others[0]


def test_arguments_of_compiled_code_have_the_names_of_the_code():
    seen: list[tuple[str, list[str]]] = []

    def backend(module: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            for frame in callers(sys._getframe()):
                if frame.f_code.co_name == "compile_wrapper":
                    code, local = frame.f_code, locals_of(frame)
                    objects = objects_of(code, local)
                    sizes = sizes_of(code, local, objects) or ()
                    seen.append((name_of(code, objects), [each.name for each in sizes]))
            return module(*args)

        return run

    class Encoder(nn.Module):
        @torch.compile(backend=backend)
        def forward(self, left, right):
            return left + right

    x = torch.ones(2, 4)
    decoder = torch.compile(Decoder(), backend=backend)
    for call in (
        lambda: decoder(x), lambda: decoder(x, x), lambda: decoder(x, mask=x),
        lambda: torch.compile(joined, backend=backend)(x, x), lambda: Encoder()(x, x),
    ):  # fmt: skip
        call()
    assert seen == [
        ("Decoder.forward", ["x"]),
        ("Decoder.forward", ["x", "y"]),
        ("Decoder.forward", ["x", "mask"]),
        ("joined", ["left", "args[1]"]),
        ("Encoder.forward", ["args[1]", "args[2]"]),
    ]
