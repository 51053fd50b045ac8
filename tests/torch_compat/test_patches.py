"""``Patches`` restores exactly what was there."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch

from cgtool.torch_compat.patches import Patches, SwitchedPatches
from cgtool.torch_compat.private import script_builtins


class Base:
    limit = 1

    def method(self, number: int) -> int:
        return number

    @staticmethod
    def static(number: int) -> int:
        return number


class Child(Base):
    own = 2


def _double(original: Any, *args: Any) -> Any:
    return 2 * original(*args)


def test_an_own_attribute_is_restored() -> None:
    with Patches() as patches:
        patches.set(Child, "own", 3)
        assert Child.own == 3
    assert Child.own == 2


def test_an_inherited_attribute_is_inherited_again() -> None:
    with Patches() as patches:
        patches.set(Child, "limit", 5)
        assert (Child.limit, Base.limit) == (5, 1)
    assert "limit" not in vars(Child)
    assert Child.limit == 1


def test_a_missing_attribute_is_missing_again() -> None:
    module = types.ModuleType("module")
    with Patches() as patches:
        patches.set(module, "added", None)
        assert module.added is None
    assert not hasattr(module, "added")


def test_none_is_a_value() -> None:
    module = types.ModuleType("module")
    module.nothing = None  # type: ignore[attr-defined]
    with Patches() as patches:
        patches.set(module, "nothing", 1)
    assert vars(module)["nothing"] is None


def test_replace_leaves_out_what_is_missing() -> None:
    with Patches() as patches:
        patches.replace(Base, "unknown", 1)
        patches.replace(Base, "limit", 7)
        assert Base.limit == 7
        assert not hasattr(Base, "unknown")
    assert Base.limit == 1


def test_a_method_is_wrapped_with_the_original_first() -> None:
    before = vars(Base)["method"]
    with Patches() as patches:
        patches.wrap(Base, "method", _double)
        assert Child().method(4) == 8
        assert Base.method.__name__ == "method"
    assert vars(Base)["method"] is before


def test_an_inherited_static_method_stays_static() -> None:
    with Patches() as patches:
        patches.wrap(Child, "static", _double)
        assert Child.static(4) == Child().static(4) == 8
        assert Base.static(4) == 4
    assert "static" not in vars(Child)
    assert isinstance(vars(Base)["static"], staticmethod)


def test_changes_of_one_attribute_are_undone_in_reverse() -> None:
    order: list[int] = []
    with Patches() as outer:
        outer.set(Child, "own", 3)
        with Patches() as inner:
            inner.set(Child, "own", 4)
            inner.set(Child, "own", 5)
            inner.callback(lambda: order.append(Child.own))
        order.append(Child.own)
    assert order == [5, 3]
    assert Child.own == 2


def test_everything_is_restored_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("at exit")

    with pytest.raises(ValueError, match="at exit"), Patches() as patches:
        patches.set(Child, "own", 3)
        patches.callback(fail)
        patches.set(Child, "limit", 3)
        raise KeyError("in the block")
    assert (Child.own, Child.limit) == (2, 1)


def test_what_cannot_be_set_is_not_restored_either() -> None:
    with Patches() as patches:
        with pytest.raises(TypeError):
            patches.set(int, "real", 0)
        patches.set(Child, "own", 3)
    assert Child.own == 2


def test_deleting_inside_the_block_is_not_an_error() -> None:
    with Patches() as patches:
        patches.set(Child, "limit", 3)
        del Child.limit
    assert Child.limit == 1


def test_a_replacement_is_unwrapped_as_the_original_would_be() -> None:
    # Dynamo reads torch.cuda.use_mem_pool.__wrapped__ when it is imported, which the first
    # optimizer of PyTorch 2.15 does.
    owner, inner = types.SimpleNamespace(), lambda: 1
    owner.function = functools.wraps(inner)(lambda: 2)
    with Patches() as patches:
        patches.replace(owner, "function", lambda: 3)
        assert (owner.function(), owner.function.__wrapped__) == (3, inner)
    assert owner.function() == 2


def test_torchscript_compiles_what_is_wrapped() -> None:
    original = torch.zeros

    def three(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros([3], device=x.device)

    with Patches() as patches:
        patches.wrap(torch, "zeros", lambda original, *args: original(*args))
        assert torch.jit.script(three)(torch.ones(1)).tolist() == [0, 0, 0]
        wrapper = id(torch.zeros)
        assert wrapper in script_builtins()
    assert torch.zeros is original and wrapper not in script_builtins()


def test_what_is_suspended_is_as_without_patches_and_comes_back() -> None:
    hooks: list[str] = []

    class Handle:
        def remove(self) -> None:
            hooks.clear()

    def register() -> Handle:
        hooks.append("hook")
        return Handle()

    with Patches() as patches:
        patches.wrap(Base, "method", _double)
        patches.set(Child, "limit", 5)
        patches.set(Child, "own", 3)
        patches.hook(register)
        Child.own = 7  # by somebody else, who keeps it
        with patches.suspended(), patches.suspended():
            assert (Base().method(2), Child.limit, Child.own, hooks) == (2, 1, 7, [])
            assert "limit" not in vars(Child)
        assert (Base().method(2), Child.limit, Child.own, hooks) == (4, 5, 7, ["hook"])
    assert (Base().method(2), Child.limit, Child.own, hooks) == (2, 1, 2, [])


def test_what_a_module_lacks_is_not_wrapped_later() -> None:
    with Patches() as patches:
        patches.wrap_later("torch", "NoSuchClass.__init__", _double)
        patches.wrap_later("torch", "no_such_function", _double)


def test_what_is_switched_on_and_off():
    class Owner:
        def method(self):
            return 1

    def add(original, *args):
        return original(*args) + 10

    method = Owner.method
    with Patches() as patches:
        switched = SwitchedPatches(patches)
        switched.wrap(Owner, "method", add)
        assert Owner.method is method
        for _ in range(2):
            switched.switch_on()
            assert Owner().method() == 11
            switched.switch_off()
            assert Owner.method is method
        # Somebody else replaces it meanwhile.
        Owner.method = lambda self: 2
        switched.switch_on()
        assert Owner().method() == 12
        switched.switch_off()
        assert Owner().method() == 2
