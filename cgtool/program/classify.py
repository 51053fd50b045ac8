"""From the object that an ENTRY names to a Workload: the object's type determines the form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from cgtool.analysis.units import names_text
from cgtool.model.capture import Frame, Frames
from cgtool.model.failure import EXIT_USAGE, EXIT_USER_CODE, CgtoolError, Failure, usage
from cgtool.observe.frames import call_user
from cgtool.program.boundary import first_line, load_error
from cgtool.program.callables import UserCallable, definition_of, describe, names_of
from cgtool.program.objects import attribute, is_a, kind_of, short, type_name
from cgtool.program.spec import InputSpec, input_text
from cgtool.program.workload import Call, Workload, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import pytree

Hint = tuple[str | None, str | None]
"""Why a user's object was called the way it was, and how to change that."""
NO_HINT: Hint = (None, None)

FORMS = """an entry point is one of
  a factory build(device) that returns (callable, args) or (callable, args, kwargs)
  a factory that returns ((f1, f2, ...), (args1, args2, ...)): callables that share a pool
  a factory that returns a zero-argument callable, or a zero-argument function: a whole step
  an nn.Module or a function with parameters, with inputs from --input or NAME_inputs(device)"""


# --- inputs

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

DEFAULT_BELOW = 100
"""Random integers without ``?int<`` stay below this: they are often indices."""


def _fill(spec: InputSpec, device: str) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.fill != "random":
        fill = torch.zeros if spec.fill == "zeros" else torch.ones
        return fill(spec.shape, dtype=dtype, device=device)
    if dtype.is_complex or dtype.is_floating_point:
        drawn = dtype
        if dtype.itemsize == 1 or dtype is torch.complex32:
            # torch.randn has no 8-bit dtypes, and complex32 not on every device.
            drawn = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(spec.shape, dtype=drawn, device=device).to(dtype)
    below = spec.below or (2 if dtype is torch.bool else DEFAULT_BELOW)
    return torch.randint(0, below, spec.shape, device=device).to(dtype)


def make_input(spec: InputSpec, device: str) -> Any:
    """A tensor on ``device``, or the Python number.

    Raises CgtoolError (exit 2) when the device has no memory for it or does not support the dtype.
    """
    if spec.scalar is not None:
        return spec.scalar
    try:
        return _fill(spec, device).requires_grad_(spec.grad)
    except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
        raise usage(
            f"--input {input_text(spec)!r} cannot be created on {device}", why=first_line(error)
        ) from error


def make_inputs(specs: Sequence[InputSpec], device: str) -> Arguments:
    """Arguments for one call: positions first, names after."""
    positional = sorted(
        (spec for spec in specs if spec.name.isdigit()), key=lambda spec: int(spec.name)
    )
    return (
        tuple(make_input(spec, device) for spec in positional),
        {spec.name: make_input(spec, device) for spec in specs if not spec.name.isdigit()},
    )


# --- what a factory returned


def _is_result(value: Any) -> bool:
    """True for the result of a step: tensors, None, or containers of these and of other data."""
    leaves = pytree.tree_leaves(value)
    if any(callable(leaf) and not is_a(leaf, torch.Tensor) for leaf in leaves):
        return False
    return bool(tensors_in(value)) or all(leaf is None for leaf in leaves)


def _is_several_calls(value: Any) -> bool:
    """True for ``((f1, f2, ...), anything)``."""
    if not is_a(value, tuple | list) or len(value) not in (2, 3):
        return False
    first = value[0]
    return is_a(first, tuple | list) and bool(first) and all(map(callable, first))


def _is_call(value: Any) -> bool:
    """True for ``(callable, not a callable)``, with or without keyword arguments."""
    return (
        is_a(value, tuple | list)
        and len(value) in (2, 3)
        and callable(value[0])
        and not is_a(value[0], type)
        and not (callable(value[1]) and not is_a(value[1], torch.Tensor))
    )


# --- forms


@dataclass
class Classifier:
    """One ENTRY on its way to a Workload. ``classify`` raises CgtoolError: exit 2 for a wrong ENTRY
    or wrong inputs, 4 for what the user's code raises or returns."""

    spec: str
    name: str
    module: ModuleType
    owner: Any
    """The object that has the last part of the name."""
    device: str
    inputs: Sequence[InputSpec]
    frame: Frame | None = None
    """Where the entry point is defined."""
    notes: list[str] = field(default_factory=list)

    @property
    def frames(self) -> Frames:
        return (self.frame,) if self.frame is not None else ()

    def _usage_error(
        self, text: str, *, why: str | None = None, fix: str | None = None
    ) -> CgtoolError:
        failure = Failure(f"{self.spec}{text}", EXIT_USAGE, self.frames, why, fix, "load")
        return CgtoolError(failure)

    def _user_error(
        self, text: str, *, why: str | None = FORMS, fix: str | None = None
    ) -> CgtoolError:
        """The error for what the user's code returned."""
        failure = Failure(f"{self.spec}{text}", EXIT_USER_CODE, self.frames, why, fix, "load")
        return CgtoolError(failure)

    def _call(self, function: Any, *args: Any, hint: Hint = NO_HINT, **kwargs: Any) -> Any:
        try:
            return call_user(function, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why, fix = hint
            raise load_error(self.spec, error, why=why, fix=fix, otherwise=self.frames) from error

    # --- what the ENTRY names

    def classify(self, value: Any) -> Workload:
        self.frame = definition_of(value, self.module, self.name)
        if is_a(value, torch.nn.Module):
            device = torch.device(self.device)
            if any(parameter.device.type != device.type for parameter in value.parameters()):
                self._call(value.to, self.device)
                self.notes.append(f"{self.name} was moved to {self.device}")
            return self._with_inputs(describe(value))
        if is_a(value, type):
            return self._class(value)
        if not callable(value):
            kind = "a module" if is_a(value, ModuleType) else kind_of(value)
            raise self._usage_error(f" is {kind}, which cannot be called", why=FORMS)
        function = describe(value)
        if function.never_runs:
            text = f" is {function.never_runs}, which cgtool does not run"
            raise self._usage_error(text, why=FORMS)
        return self._function(function)

    def _class(self, kind: type) -> Workload:
        if not issubclass(kind, torch.nn.Module):
            raise self._usage_error(" is a class, but not an nn.Module", why=FORMS)
        constructor = describe(kind)
        call = constructor.factory_call(self.device)
        if call is None or call[2] not in (None, "device"):
            raise self._usage_error(
                f" cannot be created without {', '.join(constructor.required)}",
                fix="write a factory that creates it, or name an instance",
            )
        module = self._call(kind, *call[0], **call[1])
        return self._with_inputs(describe(self._call(module.to, self.device)))

    def _function(self, function: UserCallable) -> Workload:
        signature = function.signature
        parameters = signature.parameters if signature is not None else {}
        is_factory = "device" in parameters and all(spec.name != "device" for spec in self.inputs)
        takes_inputs = (signature is None or bool(parameters)) and not is_factory
        if takes_inputs and self._has_inputs():
            return self._with_inputs(function)
        call = function.factory_call(self.device)
        if call is None:
            names = function.required
            fix = (
                f"give each with --input, as in --input '{names[0] if names else 'x'}="
                f"float32[4,128]', or write {self.name}_inputs(device) in the same file; a factory "
                "takes `device` or nothing"
            )
            if names[:1] == ("self",):
                fix = "it is a method: name an instance's method, or a factory that returns one"
            raise self._usage_error(
                f" takes {', '.join(names) or 'arguments'}, but no inputs are given", fix=fix
            )
        args, kwargs, parameter = call
        hint = NO_HINT
        if parameter not in (None, "device"):
            hint = (
                f"it takes {parameter} and no inputs are given, so it was called as a factory, "
                f"with the device {self.device!r}",
                f"if {parameter} is an input, give it with --input '{parameter}=float32[4,128]' "
                f"or {self.name}_inputs(device)",
            )
        result = self._call(function.value, *args, hint=hint, **kwargs)
        return self._returned(function, result, got_device=parameter is not None, hint=hint)

    # --- inputs

    def _inputs_function(self) -> Any:
        """``NAME_inputs`` of the user's, or None."""
        function = attribute(self.owner, f"{self.name.rpartition('.')[2]}_inputs")
        return function if callable(function) else None

    def _has_inputs(self) -> bool:
        return bool(self.inputs) or self._inputs_function() is not None

    def _arguments(self, function: UserCallable) -> Arguments:
        if self.inputs:
            return make_inputs(self.inputs, self.device)
        inputs_function = self._inputs_function()
        if inputs_function is None:
            if not function.required:
                return (), {}
            raise self._usage_error(
                f"{function.signature_text()}: no inputs are given",
                fix=f"give --input for each parameter, or write {self.name}_inputs(device)",
            )
        described = describe(inputs_function)
        call = described.factory_call(self.device)
        if call is None:
            signature = described.signature_text()
            raise self._user_error(
                f": {self.name}_inputs{signature} takes more parameters than a device",
                why=None,
                fix=f"write it as {self.name}_inputs(device)",
            )
        self.notes.append(f"inputs from {self.name}_inputs")
        inputs = self._call(inputs_function, *call[0], **call[1])
        if is_a(inputs, dict) and all(is_a(key, str) for key in inputs):
            return (), dict(inputs)
        if is_a(inputs, torch.Tensor):
            return (inputs,), {}
        if is_a(inputs, tuple | list):
            if len(inputs) == 2 and is_a(inputs[0], tuple | list) and is_a(inputs[1], dict):
                return tuple(inputs[0]), dict(inputs[1])
            return tuple(inputs), {}
        raise self._user_error(
            f": {self.name}_inputs returned {kind_of(inputs)}, {short(inputs)}",
            why="it returns a tuple of arguments, a dict of keyword arguments, or (args, kwargs)",
        )

    def _with_inputs(self, function: UserCallable) -> Workload:
        args, kwargs = self._arguments(function)
        mismatch = function.mismatch(args, kwargs)
        if mismatch is None:
            return self._callable(function, args, kwargs)
        message = f"{function.signature_text()}: {mismatch}"
        if self.inputs:
            names = list(function.signature.parameters) if function.signature else []
            fix = f"--input names its parameters: {names_text(names, 8) or 'it has none'}"
            raise self._usage_error(message, fix=fix)
        raise self._user_error(
            message, why=None, fix=f"return its arguments from {self.name}_inputs"
        )

    # --- what a factory returned

    def _returned(
        self, factory: UserCallable, result: Any, *, got_device: bool, hint: Hint
    ) -> Workload:
        if _is_result(result):
            if got_device:
                raise self._bad_return(
                    result, "a factory returns the callable, not its result", hint
                )
            self._refuse_inputs(result)
            self.notes.append(
                f"{self.name} is a whole step, captured as it is; it ran once while loading, "
                "as a first warm-up"
            )
            return self._step(factory)
        if _is_several_calls(result):
            self._refuse_inputs(result)
            return self._calls(factory, *result)
        if _is_call(result):
            self._refuse_inputs(result)
            return self._called(describe(result[0]), *result[1:])
        if callable(result) and not is_a(result, type):
            return self._returned_callable(describe(result))
        fix = None
        if is_a(result, bool | int | float | complex):
            fix = "return the tensor: a replay runs no Python, so it cannot return a Python number"
        raise self._bad_return(result, fix, hint)

    def _bad_return(self, result: Any, fix: str | None, hint: Hint) -> CgtoolError:
        shown = "None" if result is None else f"{kind_of(result)}, {short(result)}"
        why = FORMS
        if hint != NO_HINT:
            why, fix = f"{hint[0]}\n{FORMS}", hint[1]
        return self._user_error(f" returned {shown}", why=why, fix=fix)

    def _refuse_inputs(self, result: Any) -> None:
        if self.inputs:
            raise self._usage_error(
                f" returned {kind_of(result)}, which takes no --input",
                fix="leave out --input, or name a function with parameters, or a factory that "
                "returns only the callable",
            )

    def _check_runs(self, function: UserCallable, prefix: str) -> None:
        if function.never_runs:
            raise self._user_error(f"{prefix} {function.never_runs}, which cgtool does not run")

    def _returned_callable(self, function: UserCallable) -> Workload:
        self._check_runs(function, " returned")
        if self._has_inputs():
            return self._with_inputs(function)
        names = function.required
        if names:
            raise self._user_error(
                f" returned a callable that takes {', '.join(names)}, and no arguments for it",
                fix=f"return (callable, args), or give --input '{names[0]}=float32[4,128]'",
            )
        return self._step(function)

    def _called(self, function: UserCallable, args: Any, *more: Any) -> Workload:
        """``(callable, args)`` or ``(callable, args, kwargs)``."""
        self._check_runs(function, " returned")
        if is_a(args, torch.Tensor):
            args = (args,)
        if not is_a(args, tuple | list):
            form = "(), {'name': value}" if is_a(args, dict) else "(argument, ...)"
            raise self._user_error(
                f" returned arguments of type {type_name(args)}", fix=f"return (callable, {form})"
            )
        kwargs = more[0] if more else {}
        if not is_a(kwargs, dict) or not all(is_a(key, str) for key in kwargs):
            raise self._user_error(
                f" returned keyword arguments of type {type_name(kwargs)}",
                fix="return (callable, args, {'name': value})",
            )
        if mismatch := function.mismatch(tuple(args), kwargs):
            raise self._user_error(
                f" returned arguments that {function.name} does not take: {mismatch}",
                why=f"it is {function.name}{function.signature_text()}",
            )
        if args or kwargs or is_a(function.value, torch.nn.Module):
            return self._callable(function, tuple(args), kwargs)
        return self._step(function)

    def _calls(self, factory: UserCallable, functions: Any, arguments: Any, *more: Any) -> Workload:
        """``((f1, ...), (args1, ...))``, by the rules of ``torch.cuda.make_graphed_callables``."""
        if more or not is_a(arguments, tuple | list):
            raise self._user_error(
                " returned several callables without their arguments, or with keyword arguments",
                fix="return ((f1, f2, ...), (args1, args2, ...))",
            )
        if len(functions) != len(arguments):
            raise self._user_error(
                f" returned {len(functions)} callables and {len(arguments)} tuples of arguments"
            )
        calls: list[Call] = []
        described = list(map(describe, functions))
        names = names_of(factory.value, described)
        for name, function, given in zip(names, described, arguments, strict=True):
            args = (given,) if is_a(given, torch.Tensor) else given
            self._check_shared(name, function, args)
            calls.append((name, function.value, tuple(args), {}))
        return self._workload("callables", *calls)

    def _check_shared(self, name: str, function: UserCallable, args: Any) -> None:
        self._check_runs(function, f": {name} is")
        if not is_a(args, tuple | list):
            raise self._user_error(f": the arguments of {name} are {kind_of(args)}, not a tuple")
        for index, value in enumerate(args):
            if not is_a(value, torch.Tensor):
                raise self._user_error(
                    f": argument {index} of {name} is {kind_of(value)}, not a tensor",
                    why="callables that share a pool take only tensors, as in "
                    "torch.cuda.make_graphed_callables",
                    fix="bind other values with functools.partial",
                )
        if mismatch := function.mismatch(tuple(args), {}):
            raise self._user_error(
                f": {name} does not take its arguments: {mismatch}",
                why=f"it is {name}{function.signature_text()}",
            )

    # --- the workload

    def _step(self, function: UserCallable) -> Workload:
        return self._workload("step", (function.name, function.value, (), {}))

    def _callable(self, function: UserCallable, args: Args, kwargs: Kwargs) -> Workload:
        return self._workload("callable", (function.name, function.value, args, kwargs))

    def _workload(self, kind: str, *calls: Call) -> Workload:
        workload = Workload(self.spec, kind, (), self.frame, tuple(self.notes))
        workload.add_parts(calls, self.device)
        return workload
