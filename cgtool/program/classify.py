"""From the object that an ENTRY names to a Workload: the form is known by what the object is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from cgtool.model.capture import Frame
from cgtool.model.failure import EXIT_USAGE, EXIT_USER_CODE, CgtoolError, Failure, usage
from cgtool.observe.frames import call_user
from cgtool.program import callables
from cgtool.program.boundary import first_line, load_error
from cgtool.program.objects import attribute, is_a, short
from cgtool.program.spec import InputSpec, input_text
from cgtool.program.workload import Part, Workload, make_part

Result = TypeVar("Result")

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


def _fill(spec: InputSpec, device: str, generator: torch.Generator | None) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.fill == "zeros":
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    if spec.fill == "ones":
        return torch.ones(spec.shape, dtype=dtype, device=device)
    if dtype.is_complex:
        drawn = torch.complex64 if dtype.itemsize <= 8 else dtype
        return torch.randn(spec.shape, dtype=drawn, device=device, generator=generator).to(dtype)
    if dtype.is_floating_point:
        # torch.randn has no 8-bit dtypes.
        drawn = torch.float32 if dtype.itemsize == 1 else dtype
        return torch.randn(spec.shape, dtype=drawn, device=device, generator=generator).to(dtype)
    below = spec.below or (2 if dtype is torch.bool else DEFAULT_BELOW)
    return torch.randint(0, below, spec.shape, device=device, generator=generator).to(dtype)


def make_input(spec: InputSpec, device: str, generator: torch.Generator | None = None) -> Any:
    """A tensor on ``device``, or the Python number.

    Raises CgtoolError (exit 2) when the device has no memory for it or does not support the dtype.
    """
    if spec.scalar is not None:
        return spec.scalar
    try:
        return _fill(spec, device, generator).requires_grad_(spec.grad)
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


# --- forms


class Classifier:
    """One ENTRY on its way to a Workload. ``classify`` raises CgtoolError: exit 2 for a wrong ENTRY
    or wrong inputs, 4 for what the user's code raises or returns."""

    def __init__(
        self,
        spec: str,
        name: str,
        module: ModuleType,
        owner: Any,
        device: str,
        inputs: Sequence[InputSpec],
    ) -> None:
        self.spec = spec
        self.name = name
        self.module = module
        self.owner = owner
        self.device = device
        self.inputs = inputs
        self.file: str | None = None
        self.line: int | None = None
        self.notes: list[str] = []

    @property
    def frames(self) -> tuple[Frame, ...]:
        return (Frame(self.file, self.line or 1, self.name),) if self.file else ()

    def _error(
        self, what: str, *, why: str | None = FORMS, fix: str | None = None, code: int
    ) -> CgtoolError:
        return CgtoolError(Failure(f"{self.spec}{what}", code, self.frames, why, fix, "load"))

    def _call(self, function: Any, *args: Any, hint: Sequence[str] = (), **kwargs: Any) -> Any:
        """Call something of the user's. ``hint``: why it is called so, and how to change that."""
        try:
            return call_user(function, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why, fix = (*hint, None, None)[:2]
            raise load_error(self.spec, error, why=why, fix=fix, otherwise=self.frames) from error

    # --- what the ENTRY names

    def classify(self, value: Any) -> Workload:
        self.file, self.line = callables.place_of(value, self.module, self.name)
        if is_a(value, torch.nn.Module):
            return self._module(value)
        if is_a(value, type):
            return self._class(value)
        if not callable(value):
            kind = "a module" if is_a(value, ModuleType) else callables.kind(value)
            raise self._error(f" is {kind}, which cannot be called", code=EXIT_USAGE)
        wrong = callables.cannot_run(value)
        if wrong:
            raise self._error(f" is {wrong}, which cgtool does not run", code=EXIT_USAGE)
        return self._function(value)

    def _module(self, module: torch.nn.Module) -> Workload:
        device = torch.device(self.device)
        if any(parameter.device.type != device.type for parameter in module.parameters()):
            self._call(module.to, self.device)
            self.notes.append(f"{self.name} was moved to {self.device}")
        return self._with_inputs(module)

    def _class(self, kind: type) -> Workload:
        if not issubclass(kind, torch.nn.Module):
            raise self._error(" is a class, but not an nn.Module", code=EXIT_USAGE)
        call = callables.factory_call(kind, self.device)
        if call is None or call[2] not in (None, "device"):
            raise self._error(
                f" cannot be created without {', '.join(callables.required(kind))}",
                why=None,
                fix="write a factory that creates it, or name an instance",
                code=EXIT_USAGE,
            )
        module = self._call(kind, *call[0], **call[1])
        return self._with_inputs(self._call(module.to, self.device))

    def _function(self, function: Any) -> Workload:
        input_names = [spec.name for spec in self.inputs]
        is_factory = callables.names_device(function) and "device" not in input_names
        call = callables.factory_call(function, self.device)
        signature = callables.signature_of(function)
        has_parameters = signature is None or bool(signature.parameters)
        if self._has_inputs() and has_parameters and not is_factory:
            return self._with_inputs(function)
        if call is None:
            names = callables.required(function)
            fix = (
                f"give each with --input, as in --input '{names[0] if names else 'x'}="
                f"float32[4,128]', or write {self.name}_inputs(device) in the same file; a factory "
                "takes `device` or nothing"
            )
            if names[:1] == ["self"]:
                fix = "it is a method: name an instance's method, or a factory that returns one"
            raise self._error(
                f" takes {', '.join(names) or 'arguments'}, and no inputs are given",
                why=None,
                fix=fix,
                code=EXIT_USAGE,
            )
        args, kwargs, parameter = call
        hint: tuple[str, ...] = ()
        if parameter not in (None, "device"):
            hint = (
                f"it takes {parameter} and no inputs are given, so it was called as a factory, "
                f"with the device {self.device!r}",
                f"if {parameter} is an input, give it with --input '{parameter}=float32[4,128]' "
                f"or {self.name}_inputs(device)",
            )
        result = self._call(function, *args, hint=hint, **kwargs)
        return self._returned(function, result, got_device=parameter is not None, hint=hint)

    # --- inputs

    def _inputs_function(self) -> Any:
        """``NAME_inputs`` of the user's, or None."""
        function = attribute(self.owner, f"{self.name.rpartition('.')[2]}_inputs")
        return function if callable(function) else None

    def _has_inputs(self) -> bool:
        return bool(self.inputs) or self._inputs_function() is not None

    def _arguments(self, value: Any) -> Arguments:
        if self.inputs:
            return make_inputs(self.inputs, self.device)
        function = self._inputs_function()
        if function is None:
            if not callables.required(value):
                return (), {}
            raise self._error(
                f"{callables.signature_text(value)}: no inputs are given",
                why=None,
                fix=f"give --input for each parameter, or write {self.name}_inputs(device)",
                code=EXIT_USAGE,
            )
        call = callables.factory_call(function, self.device)
        if call is None:
            signature = callables.signature_text(function)
            raise self._error(
                f": {self.name}_inputs{signature} takes more than a device",
                why=None,
                fix=f"write it as {self.name}_inputs(device)",
                code=EXIT_USER_CODE,
            )
        self.notes.append(f"inputs from {self.name}_inputs")
        inputs = self._call(function, *call[0], **call[1])
        if is_a(inputs, dict) and all(is_a(key, str) for key in inputs):
            return (), dict(inputs)
        if is_a(inputs, torch.Tensor):
            return (inputs,), {}
        if is_a(inputs, tuple | list):
            if len(inputs) == 2 and is_a(inputs[0], tuple | list) and is_a(inputs[1], dict):
                return tuple(inputs[0]), dict(inputs[1])
            return tuple(inputs), {}
        raise self._error(
            f": {self.name}_inputs returned {callables.kind(inputs)}, {short(inputs)}",
            why="it returns a tuple of arguments, a dict of keyword arguments, or (args, kwargs)",
            code=EXIT_USER_CODE,
        )

    def _with_inputs(self, value: Any) -> Workload:
        args, kwargs = self._arguments(value)
        wrong = callables.mismatch(value, args, kwargs)
        if wrong:
            raise self._error(
                f"{callables.signature_text(value)}: {wrong}",
                why=None,
                fix="name the inputs as its parameters"
                if self.inputs
                else f"return its arguments from {self.name}_inputs",
                code=EXIT_USAGE if self.inputs else EXIT_USER_CODE,
            )
        return self._callable(value, args, kwargs)

    # --- what a factory returned

    def _returned(
        self, factory: Any, result: Any, *, got_device: bool, hint: Sequence[str] = ()
    ) -> Workload:
        if callables.is_result(result):
            if got_device:
                raise self._bad_return(
                    result, "a factory returns what to call, not its result", hint
                )
            self._refuse_inputs(result)
            self.notes.append(
                f"{self.name} is a whole step, captured as it is; it ran once while loading, "
                "as a first warm-up"
            )
            return self._step(factory)
        if callables.is_several_calls(result):
            self._refuse_inputs(result)
            calls = self._read(callables.read_calls, result, factory)
            return self._workload("callables", tuple(self._part(*call, {}) for call in calls))
        if callables.is_call(result):
            self._refuse_inputs(result)
            function, args, kwargs = self._read(callables.read_call, result)
            if args or kwargs or is_a(function, torch.nn.Module):
                return self._callable(function, args, kwargs)
            return self._step(function)
        if callable(result) and not is_a(result, type):
            return self._returned_callable(result)
        fix = None
        if is_a(result, bool | int | float | complex):
            fix = "return the tensor: a replay runs no Python, so it cannot return a Python number"
        raise self._bad_return(result, fix, hint)

    def _bad_return(self, result: Any, fix: str | None, hint: Sequence[str]) -> CgtoolError:
        shown = "None" if result is None else f"{callables.kind(result)}, {short(result)}"
        why = FORMS
        if hint:
            why, fix = f"{hint[0]}\n{FORMS}", hint[1]
        return self._error(f" returned {shown}", why=why, fix=fix, code=EXIT_USER_CODE)

    def _read(self, reader: Callable[..., Result], *args: Any) -> Result:
        try:
            return reader(*args)
        except callables.BadReturn as error:
            raise self._error(
                error.what, why=error.why or FORMS, fix=error.fix, code=EXIT_USER_CODE
            ) from None

    def _refuse_inputs(self, result: Any) -> None:
        if self.inputs:
            raise self._error(
                f" returned {callables.kind(result)}, which takes no --input",
                why=None,
                fix="leave out --input, or name a function with parameters, or a factory that "
                "returns only the callable",
                code=EXIT_USAGE,
            )

    def _returned_callable(self, function: Any) -> Workload:
        wrong = callables.cannot_run(function)
        if wrong:
            raise self._error(f" returned {wrong}, which cgtool does not run", code=EXIT_USER_CODE)
        if self._has_inputs():
            return self._with_inputs(function)
        names = callables.required(function)
        if names:
            raise self._error(
                f" returned a callable that takes {', '.join(names)}, and no arguments for it",
                fix=f"return (callable, args), or give --input '{names[0]}=float32[4,128]'",
                code=EXIT_USER_CODE,
            )
        return self._step(function)

    # --- the workload

    def _step(self, function: Any) -> Workload:
        return self._workload("step", (self._part(callables.name_of(function), function, (), {}),))

    def _callable(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Workload:
        part = self._part(callables.name_of(value), value, args, kwargs)
        return self._workload("callable", (part,))

    def _part(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Part:
        part, notes = make_part(name, function, args, kwargs, self.device)
        self.notes += notes
        return dataclasses.replace(part, frames=self.frames)

    def _workload(self, kind: str, parts: tuple[Part, ...]) -> Workload:
        return Workload(self.spec, kind, parts, self.file, self.line, tuple(self.notes))
