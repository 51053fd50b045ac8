"""ENTRY to Workload: what was pointed at is told by what it is, never by its source."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cgtool.entry.grammar import parse
from cgtool.entry.imports import find
from cgtool.entry.inputs import make
from cgtool.entry.modules import used_by
from cgtool.entry.surface import tensors_in
from cgtool.entry.workload import Part, Workload
from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, Failure, usage, user_code
from cgtool.record.frames import exception_frames

FORMS = """an entry point is one of
  a factory build(device) that returns (callable, args) or (callable, args, kwargs)
  a factory that returns ((f1, f2, ...), (args1, args2, ...)): callables that share a pool
  a factory that returns a zero-argument callable, or a zero-argument function: a whole step
  an nn.Module or a function with parameters, with inputs from --input or NAME_inputs(device)"""


def load(
    spec: str, *, device: str, inputs: tuple[str, ...] = (), seed: int | None = None
) -> Workload:
    """Load an entry point on ``device``.

    Raises CgtoolError: exit 2 for a wrong ENTRY or --input, 4 for what the user's code raises or
    returns.
    """
    specs = [parse(text) for text in inputs]
    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)
    module, name, value = find(spec)
    loader = _Loader(spec, module, name, device)
    given = {one.name: make(one, device) for one in specs}
    workload = loader.classify(value, given)
    loader.check_devices(workload)
    return workload


def _place(value: Any) -> tuple[str | None, int | None]:
    target = inspect.unwrap(value) if callable(value) else value
    target = target if hasattr(target, "__code__") or inspect.isclass(target) else type(target)
    code = getattr(target, "__code__", None)
    if code is not None:
        return code.co_filename, code.co_firstlineno
    try:
        return inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):
        return None, None


def _is_container_of_tensors(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, torch.Tensor)
        or (
            isinstance(value, list | tuple | dict)
            and bool(tensors_in(value))
            and not _holds_callables(value)
        )
    )


def _holds_callables(value: Any) -> bool:
    return any(
        callable(one) and not isinstance(one, torch.Tensor) for one in pytree.tree_leaves(value)
    )


class _Loader:
    def __init__(self, spec: str, module: ModuleType, name: str, device: str) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.device = device
        self.notes: list[str] = []
        self.file: str | None = None
        self.line: int | None = None

    def _frames(self) -> tuple[Frame, ...]:
        if self.file is None:
            return ()
        return (Frame(self.file, self.line or 0, self.name),)

    def _nonsense(self, what: str, fix: str | None = None) -> CgtoolError:
        return CgtoolError(Failure(what, 4, self._frames(), why=FORMS, fix=fix, phase="load"))

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (KeyboardInterrupt, CgtoolError):
            raise
        except BaseException as error:
            text = str(error).strip().splitlines()
            raise user_code(
                f"{self.spec} raised {type(error).__name__}" + (f": {text[0]}" if text else ""),
                frames=exception_frames(error),
                phase="load",
            ) from error

    def classify(self, value: Any, given: dict[str, Any]) -> Workload:
        self.file, self.line = _place(value)
        if isinstance(value, torch.nn.Module):
            return self._callable(value, given)
        if inspect.isclass(value):
            return self._class(value, given)
        if not callable(value):
            raise self._nonsense(f"{self.spec} is a {type(value).__name__}, which cannot be called")
        function = inspect.unwrap(value)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise self._nonsense(f"{self.spec} is an async function, which cgtool does not run")
        if inspect.isgeneratorfunction(function):
            raise self._nonsense(f"{self.spec} is a generator function, which cgtool does not run")
        required, accepts_device = self._parameters(value)
        sibling = getattr(self.module, f"{self.name}_inputs", None)
        if given or callable(sibling):
            return self._callable(value, given)
        if accepts_device:
            return self._returned(value, self._run(value, self.device), called=True)
        if required:
            raise usage(
                f"{self.spec} takes {', '.join(required)}, and nothing says with what",
                fix="give each with --input, or write "
                f"{self.name}_inputs(device) beside it; a factory takes `device` or nothing",
            )
        return self._returned(value, self._run(value), called=True)

    def _parameters(self, value: Any) -> tuple[list[str], bool]:
        try:
            parameters = list(inspect.signature(value).parameters.values())
        except (TypeError, ValueError):
            return [], False
        required = [
            one.name
            for one in parameters
            if one.default is inspect.Parameter.empty
            and one.kind
            in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        ]
        takes_device = bool(parameters) and parameters[0].name == "device" and len(required) <= 1
        return required, takes_device

    def _class(self, value: Any, given: dict[str, Any]) -> Workload:
        if not issubclass(value, torch.nn.Module):
            raise self._nonsense(f"{self.spec} is a class, but not an nn.Module")
        required, _ = self._parameters(value)
        if required:
            raise usage(
                f"{self.spec} needs {', '.join(required)} to be made",
                fix="point at a factory that makes it, or at an instance",
            )
        return self._callable(self._run(value).to(self.device), given)

    def _arguments(self, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sibling = getattr(self.module, f"{self.name}_inputs", None)
        if given:
            positional = sorted((key for key in given if key.isdigit()), key=int)
            return (
                tuple(given[key] for key in positional),
                {key: one for key, one in given.items() if not key.isdigit()},
            )
        if not callable(sibling):
            raise usage(
                f"{self.spec}: nothing says what to call it with",
                fix=f"give --input for each parameter, or write {self.name}_inputs(device)",
            )
        made = self._run(sibling, self.device)
        if isinstance(made, dict):
            return (), dict(made)
        if isinstance(made, torch.Tensor):
            return (made,), {}
        if (
            isinstance(made, tuple)
            and len(made) == 2
            and isinstance(made[0], tuple)
            and isinstance(made[1], dict)
        ):
            return made[0], dict(made[1])
        if isinstance(made, tuple | list):
            return tuple(made), {}
        raise self._nonsense(
            f"{self.name}_inputs returned a {type(made).__name__}, not arguments",
            fix="return a tuple of arguments, a dict of keyword arguments, or (args, kwargs)",
        )

    def _callable(self, value: Any, given: dict[str, Any]) -> Workload:
        args, kwargs = self._arguments(given)
        try:
            inspect.signature(value.forward if isinstance(value, torch.nn.Module) else value).bind(
                *args, **kwargs
            )
        except TypeError as error:
            raise usage(f"{self.spec}: {error}", fix="name the inputs as its parameters") from error
        except ValueError:
            pass
        return self._workload("callable", (self._part(value, args, kwargs),))

    def _returned(self, value: Any, made: Any, *, called: bool) -> Workload:
        if _is_container_of_tensors(made):
            self.notes.append(
                f"{self.name} is a whole step, captured as it is; it ran once while loading"
            )
            return self._workload("step", (self._part(value, (), {}),))
        if isinstance(made, tuple | list) and len(made) in (2, 3):
            first = made[0]
            if isinstance(first, tuple | list) and first and all(callable(one) for one in first):
                return self._several(made)
            if callable(first):
                return self._one(made)
        if callable(made):
            required, _ = self._parameters(
                made.forward if isinstance(made, torch.nn.Module) else made
            )
            if required:
                raise self._nonsense(
                    f"{self.spec} returned a callable that takes {', '.join(required)}, "
                    "and no arguments for it"
                )
            return self._workload("step", (self._part(made, (), {}),))
        shown = repr(made)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise self._nonsense(f"{self.spec} returned a {type(made).__name__}: {shown}")

    def _one(self, made: Any) -> Workload:
        function, args, *rest = made
        kwargs = rest[0] if rest else {}
        if isinstance(args, torch.Tensor):
            args = (args,)
        if not isinstance(args, tuple | list):
            raise self._nonsense(
                f"{self.spec} returned arguments of type {type(args).__name__}",
                fix="return (callable, (argument, ...))",
            )
        if not isinstance(kwargs, dict):
            raise self._nonsense(
                f"{self.spec} returned keyword arguments of type {type(kwargs).__name__}",
                fix="return (callable, args, {'name': value})",
            )
        if not args and not kwargs:
            return self._workload("step", (self._part(function, (), {}),))
        return self._workload("callable", (self._part(function, tuple(args), kwargs),))

    def _several(self, made: Any) -> Workload:
        functions, arguments = made[0], made[1]
        if len(made) != 2 or not isinstance(arguments, tuple | list):
            raise self._nonsense(f"{self.spec}: several callables need ((f, ...), (args, ...))")
        if len(functions) != len(arguments):
            raise self._nonsense(
                f"{self.spec} returned {len(functions)} callables and {len(arguments)} "
                "tuples of arguments"
            )
        parts = []
        for index, (function, given) in enumerate(zip(functions, arguments, strict=True)):
            args = (given,) if isinstance(given, torch.Tensor) else given
            if not isinstance(args, tuple | list) or not all(
                isinstance(one, torch.Tensor) for one in args
            ):
                raise self._nonsense(
                    f"{self.spec}: the arguments of callable {index} are not all tensors",
                    fix="bind other values with functools.partial: callables that share a pool "
                    "take tensors only, as torch.cuda.make_graphed_callables has it",
                )
            parts.append(self._part(function, tuple(args), {}))
        return self._workload("callables", tuple(parts))

    def _part(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Part:
        modules = used_by(function)
        name = getattr(function, "__name__", None) or type(function).__name__
        if isinstance(function, torch.nn.Module):
            name = type(function).__name__
        elif name == "<lambda>":
            name = "lambda"
        if modules and "" not in modules:
            self.notes.append(
                f"{name} runs the modules {', '.join(modules)}: found by name in its closure and "
                "globals"
            )
        frozen = [
            key
            for key, one in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]
            if isinstance(one, int | float | str | bool)
        ]
        if frozen:
            self.notes.append(
                f"{name}: the arguments {', '.join(frozen)} are Python values; the graph keeps "
                "what they were"
            )
        return Part(name, function, args, kwargs, modules)

    def _workload(self, kind: str, parts: tuple[Part, ...]) -> Workload:
        return Workload(self.spec, kind, parts, self.file, self.line, tuple(self.notes))

    def check_devices(self, workload: Workload) -> None:
        """Tensors must be on the device that is captured on."""
        wanted = torch.device(self.device).type
        for part in workload.parts:
            where = [
                *(("argument " + str(i), a) for i, a in enumerate(part.args)),
                *(("argument " + key, a) for key, a in part.kwargs.items()),
            ]
            for name, argument in where:
                for path, tensor in tensors_in(argument):
                    self._check_device(part, f"{name}{path}", tensor, wanted)
            for name, parameter in part.parameters():
                self._check_device(part, f"parameter {name}", parameter, wanted)

    def _check_device(self, part: Part, name: str, tensor: torch.Tensor, wanted: str) -> None:
        if tensor.device.type != wanted:
            raise CgtoolError(
                Failure(
                    f"{part.name}: {name} is on {tensor.device}, the capture is on {wanted}",
                    4,
                    self._frames(),
                    why="a CUDA graph holds only work of the device that it is captured on",
                    fix="make it with device=device, or move it with .to(device)",
                    phase="load",
                )
            )
