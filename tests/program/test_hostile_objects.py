"""Objects that raise when they are looked at: in arguments, closures, globals, results."""

from __future__ import annotations

import pytest

from cgtool.program.description import named_tensors
from cgtool.program.phases import flatten_outputs
from cgtool.program.reach import reach

CLASSES = """
import dataclasses
class GetAttr:
    def __getattr__(self, name): raise RuntimeError("getattr")
class Class:
    @property
    def __class__(self): raise RuntimeError("class")
class GetAttribute:
    def __getattribute__(self, name): raise RuntimeError("getattribute")
class Bool:
    def __bool__(self): raise RuntimeError("bool")
class Equal:
    def __eq__(self, other): raise RuntimeError("eq")
    __hash__ = None
class Text:
    def __repr__(self): raise RuntimeError("repr")
    __str__ = __repr__
class Items(list):
    def __len__(self): raise RuntimeError("len")
    def __iter__(self): raise RuntimeError("iter")
class Mapping(dict):
    def __len__(self): raise RuntimeError("len")
    def items(self): raise RuntimeError("items")
class Meta(type):
    def __getattribute__(cls, name): raise RuntimeError("meta")
class OfMeta(metaclass=Meta): pass
@dataclasses.dataclass
class Field:
    x: object = None
    def __getattribute__(self, name):
        if name == "x": raise RuntimeError("field")
        return object.__getattribute__(self, name)
class Anything:
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self
class Caller:
    def __getattr__(self, name): raise RuntimeError("getattr")
    def __call__(self, x): return x + 1
"""
NAMES = [
    "GetAttr", "Class", "GetAttribute", "Bool", "Equal", "Text", "Items", "Mapping", "OfMeta",
    "Field", "Anything", "Caller",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_as_an_argument(name, loaded):
    text = CLASSES + f"def f(x, y): return x\ndef build(): return f, (torch.ones(1), {name}())"
    workload = loaded(text)
    assert workload.kind == "callable"
    assert any(name in note for note in workload.notes)


def test_modules_that_list_their_tensors_themselves(loaded):
    text = """
class Own(nn.BatchNorm1d):
    def named_parameters(self, recurse=True): return super().named_parameters(recurse=recurse)
    def named_buffers(self, recurse=True): return super().named_buffers(recurse=recurse)
own = Own(2, affine=True)
def f(x): return own(x)
def build(): return f, (torch.ones(4, 2),)
"""
    workload = loaded(text)
    (part,) = workload.parts
    assert [name for name, _ in part.parameters()] == ["own.weight", "own.bias"]
    names = [name for name, kind, _ in named_tensors(workload) if kind == "buffer"]
    tables = "running_mean", "running_var", "num_batches_tracked"
    assert names == [f"buffer own.{table}" for table in tables]


@pytest.mark.parametrize("name", NAMES)
def test_in_a_closure_and_a_global(name, loaded):
    text = CLASSES + (
        f"odd = {name}()\n"
        "layer = nn.Linear(1, 1)\n"
        "def build():\n"
        f"    inner, weight = {name}(), torch.ones(1)\n"
        "    def f(x): return layer(x), inner, odd, weight\n"
        "    return f, (torch.ones(1),)\n"
    )
    (part,) = loaded(text).parts
    assert set(part.modules) == {"layer"}
    assert set(reach(part.function).tensors) == {"weight"}


@pytest.mark.parametrize("name", NAMES)
def test_in_what_is_returned(name, loaded):
    text = CLASSES + (f"def f(x): return x + 1, {name}()\ndef build(): return f, (torch.ones(1),)")
    (part,) = loaded(text).parts
    assert [path for path, _ in flatten_outputs(part.function(*part.args))] == ["output[0]"]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"Anything", "Caller"}))
def test_instead_of_a_callable(name, refused):
    failure = refused(CLASSES + f"def build(): return {name}()")
    assert failure.exit_code == 4
    assert failure.frames
    failure = refused(CLASSES + f"build = {name}()")
    assert failure.exit_code in (2, 4)


def test_a_callable_whose_attributes_raise_is_called(loaded):
    workload = loaded(CLASSES + "def build(): return Caller(), (torch.ones(1),)")
    assert workload.parts[0].name == "Caller"
    assert workload.parts[0].function(*workload.parts[0].args) == 2


def test_an_error_without_a_message(refused):
    failure = refused(
        """
        class Bad(Exception):
            def __str__(self): raise ValueError
        def build(): raise Bad
        """
    )
    assert "raised Bad: (its message raised ValueError)" in failure.message
