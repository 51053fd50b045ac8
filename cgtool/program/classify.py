"""What was pointed at, to a Workload: the forms are told apart by what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from cgtool.model.capture import Frame
from cgtool.model.failure import EXIT_USAGE, EXIT_USER_CODE, CgtoolError, Failure
from cgtool.observe.frames import call_user
from cgtool.program import callables, returned
from cgtool.program.boundary import load_error
from cgtool.program.grammar import InputSpec
from cgtool.program.guarded_access import attribute, is_a, short
from cgtool.program.inputs import Arguments, make_all
from cgtool.program.workload import Part, Workload, make_part

Result = TypeVar("Result")

FORMS = """an entry point is one of
  a factory build(device) that returns (callable, args) or (callable, args, kwargs)
  a factory that returns ((f1, f2, ...), (args1, args2, ...)): callables that share a pool
  a factory that returns a zero-argument callable, or a zero-argument function: a whole step
  an nn.Module or a function with parameters, with inputs from --input or NAME_inputs(device)"""


class Classifier:
    """One ENTRY on its way to a Workload. ``classify`` raises CgtoolError: exit 2 when the wrong
    thing was pointed at or given, 4 for what the user's code raises or returns."""

    def __init__(
        self,
        spec: str,
        name: str,
        module: ModuleType,
        owner: Any,
        device: str,
        specs: Sequence[InputSpec],
    ) -> None:
        self.spec = spec
        self.name = name
        self.module = module
        self.owner = owner
        self.device = device
        self.specs = specs
        self.file: str | None = None
        self.line: int | None = None
        self.notes: list[str] = []

    @property
    def frames(self) -> tuple[Frame, ...]:
        return (Frame(self.file, self.line or 1, self.name),) if self.file else ()

    def _wrong(
        self, what: str, *, why: str | None = FORMS, fix: str | None = None, code: int
    ) -> CgtoolError:
        return CgtoolError(Failure(f"{self.spec}{what}", code, self.frames, why, fix, "load"))

    def _run(self, function: Any, *args: Any, hint: Sequence[str] = (), **kwargs: Any) -> Any:
        """Call something of the user's. ``hint`` is why it was called so, and what to do."""
        try:
            return call_user(function, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why, fix = (*hint, None, None)[:2]
            raise load_error(self.spec, error, why=why, fix=fix, otherwise=self.frames) from error

    # --- what was pointed at

    def classify(self, value: Any) -> Workload:
        self.file, self.line = callables.place_of(value, self.module, self.name)
        if is_a(value, torch.nn.Module):
            return self._module(value)
        if is_a(value, type):
            return self._class(value)
        if not callable(value):
            what = "a module" if is_a(value, ModuleType) else returned.kind(value)
            raise self._wrong(f" is {what}, which cannot be called", code=EXIT_USAGE)
        wrong = callables.cannot_run(value)
        if wrong:
            raise self._wrong(f" is {wrong}, which cgtool does not run", code=EXIT_USAGE)
        return self._function(value)

    def _has_inputs(self) -> bool:
        return bool(self.specs) or self._sibling() is not None

    def _sibling(self) -> Any:
        last = self.name.rpartition(".")[2]
        found = attribute(self.owner, f"{last}_inputs")
        return found if callable(found) else None

    def _module(self, module: torch.nn.Module) -> Workload:
        wanted = torch.device(self.device)
        if any(tensor.device.type != wanted.type for tensor in module.parameters()):
            self._run(module.to, self.device)
            self.notes.append(f"{self.name} was moved to {self.device}")
        return self._with_inputs(module)

    def _class(self, kind: type) -> Workload:
        if not issubclass(kind, torch.nn.Module):
            raise self._wrong(" is a class, but not an nn.Module", code=EXIT_USAGE)
        call = callables.factory_call(kind, self.device)
        if call is None or call[2] not in (None, "device"):
            raise self._wrong(
                f" needs {', '.join(callables.required(kind))} to be made",
                why=None,
                fix="point at a factory that makes it, or at an instance",
                code=EXIT_USAGE,
            )
        made = self._run(kind, *call[0], **call[1])
        return self._with_inputs(self._run(made.to, self.device))

    def _function(self, value: Any) -> Workload:
        is_factory = callables.names_device(value) and "device" not in [s.name for s in self.specs]
        call = callables.factory_call(value, self.device)
        signature = callables.signature_of(value)
        has_parameters = signature is None or bool(signature.parameters)
        if self._has_inputs() and has_parameters and not is_factory:
            return self._with_inputs(value)
        if call is None:
            needed = callables.required(value)
            raise self._wrong(
                f" takes {', '.join(needed) or 'arguments'}, and nothing says with what",
                why=None,
                fix=self._method_hint(needed)
                or "give each with --input, as in "
                f"--input '{needed[0] if needed else 'x'}=float32[4,128]', or write "
                f"{self.name}_inputs(device) beside it; a factory takes `device` or nothing",
                code=EXIT_USAGE,
            )
        args, kwargs, parameter = call
        hint: tuple[str, ...] = ()
        if parameter not in (None, "device"):
            hint = (
                f"it takes {parameter} and nothing says with what, so it was called as a factory, "
                f"with the device {self.device!r}",
                f"if {parameter} is an input, give it with --input '{parameter}=float32[4,128]' "
                f"or {self.name}_inputs(device)",
            )
        made = self._run(value, *args, hint=hint, **kwargs)
        return self._returned(value, made, gave_device=parameter is not None, hint=hint)

    def _method_hint(self, needed: list[str]) -> str | None:
        if needed[:1] != ["self"]:
            return None
        return "it is a method: point at an instance's, or at a factory that makes one"

    # --- where inputs come from

    def _arguments(self, value: Any) -> Arguments:
        if self.specs:
            return make_all(self.specs, self.device)
        sibling = self._sibling()
        if sibling is None:
            if not callables.required(value):
                return (), {}
            raise self._wrong(
                f"{callables.shown(value)}: nothing says what to call it with",
                why=None,
                fix=f"give --input for each parameter, or write {self.name}_inputs(device)",
                code=EXIT_USAGE,
            )
        call = callables.factory_call(sibling, self.device)
        if call is None:
            raise self._wrong(
                f": {self.name}_inputs{callables.shown(sibling)} takes more than a device",
                why=None,
                fix=f"write it as {self.name}_inputs(device)",
                code=EXIT_USER_CODE,
            )
        self.notes.append(f"inputs from {self.name}_inputs")
        made = self._run(sibling, *call[0], **call[1])
        if is_a(made, dict) and all(is_a(key, str) for key in made):
            return (), dict(made)
        if is_a(made, torch.Tensor):
            return (made,), {}
        if is_a(made, tuple | list):
            if len(made) == 2 and is_a(made[0], tuple | list) and is_a(made[1], dict):
                return tuple(made[0]), dict(made[1])
            return tuple(made), {}
        raise self._wrong(
            f": {self.name}_inputs returned {returned.kind(made)}, {short(made)}",
            why="it returns a tuple of arguments, a dict of keyword arguments, or (args, kwargs)",
            code=EXIT_USER_CODE,
        )

    def _with_inputs(self, value: Any) -> Workload:
        args, kwargs = self._arguments(value)
        wrong = callables.misfit(value, args, kwargs)
        if wrong:
            raise self._wrong(
                f"{callables.shown(value)}: {wrong}",
                why=None,
                fix="name the inputs as its parameters"
                if self.specs
                else f"return what it takes from {self.name}_inputs",
                code=EXIT_USAGE if self.specs else EXIT_USER_CODE,
            )
        return self._callable(value, args, kwargs)

    # --- what a factory returned

    def _returned(
        self, value: Any, made: Any, *, gave_device: bool, hint: Sequence[str] = ()
    ) -> Workload:
        if returned.is_result(made):
            if not gave_device:
                self._refuse_inputs(made)
                self.notes.append(
                    f"{self.name} is a whole step, captured as it is; it ran once while loading, "
                    "as a first warm-up"
                )
                return self._step(value)
            raise self._nonsense(made, "a factory returns what to call, not its result", hint)
        if returned.holds_several(made):
            self._refuse_inputs(made)
            several = self._checked(returned.several, made, value)
            return self._workload("callables", tuple(self._part(*one, {}) for one in several))
        if returned.holds_one(made):
            self._refuse_inputs(made)
            function, args, kwargs = self._checked(returned.one, made)
            if args or kwargs or is_a(function, torch.nn.Module):
                return self._callable(function, args, kwargs)
            return self._step(function)
        if callable(made) and not is_a(made, type):
            return self._bare(made)
        fix = None
        if is_a(made, bool | int | float | complex):
            fix = "return the tensor: a replay runs no Python, so it hands out no Python number"
        raise self._nonsense(made, fix, hint)

    def _nonsense(self, made: Any, fix: str | None, hint: Sequence[str] = ()) -> CgtoolError:
        if hint:
            return self._wrong(
                f" returned {returned.kind(made)}, {short(made)}",
                why=f"{hint[0]}\n{FORMS}",
                fix=hint[1],
                code=EXIT_USER_CODE,
            )
        text = (
            " returned None" if made is None else f" returned {returned.kind(made)}, {short(made)}"
        )
        return self._wrong(text, fix=fix, code=EXIT_USER_CODE)

    def _checked(self, reader: Callable[..., Result], *args: Any) -> Result:
        try:
            return reader(*args)
        except returned.Nonsense as error:
            raise self._wrong(
                error.what, why=error.why or FORMS, fix=error.fix, code=EXIT_USER_CODE
            ) from None

    def _refuse_inputs(self, made: Any) -> None:
        if self.specs:
            raise self._wrong(
                f" returned {returned.kind(made)}, which takes no --input",
                why=None,
                fix="leave --input out, or point at a function with parameters, or at a factory "
                "that returns the callable alone",
                code=EXIT_USAGE,
            )

    def _bare(self, made: Any) -> Workload:
        wrong = callables.cannot_run(made)
        if wrong:
            raise self._wrong(f" returned {wrong}, which cgtool does not run", code=EXIT_USER_CODE)
        if self._has_inputs():
            return self._with_inputs(made)
        needed = callables.required(made)
        if needed:
            raise self._wrong(
                f" returned a callable that takes {', '.join(needed)}, and no arguments for it",
                fix=f"return (callable, args), or give --input '{needed[0]}=float32[4,128]'",
                code=EXIT_USER_CODE,
            )
        return self._step(made)

    # --- the workload

    def _step(self, function: Any) -> Workload:
        return self._workload("step", (self._part(callables.name_of(function), function, (), {}),))

    def _callable(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Workload:
        return self._workload(
            "callable", (self._part(callables.name_of(value), value, args, kwargs),)
        )

    def _part(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Part:
        part, notes = make_part(name, function, args, kwargs, self.device)
        self.notes += notes
        return dataclasses.replace(part, frames=self.frames)

    def _workload(self, kind: str, parts: tuple[Part, ...]) -> Workload:
        return Workload(self.spec, kind, parts, self.file, self.line, tuple(self.notes))
