"""Runs nodes as a prompt says, and evaluates expressions of what they read and write."""

from __future__ import annotations

import contextlib
import re
import signal
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.devices.device import VerifyTarget
from cgtool.devices.stepping import StepFailedError, Stepper
from cgtool.jobs.debug import TRIAL, captured_to_step, fault, values_at
from cgtool.jobs.hanging_node import watched
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.files import atomic
from cgtool.model.jobs import Answer, Begin, Evaluate, Question, RunTo, Talk
from cgtool.model.options import Progress
from cgtool.observe.raw_tensors import held, raw
from cgtool.program.boundary import first_line

_WORD = re.compile(r"\w+")


class DebugServer:
    """A replay of all graphs, in the order of capture, that stops between two nodes."""

    def __init__(self, target: VerifyTarget, progress: Progress) -> None:
        """Capture. Raises CgtoolError."""
        captured, self._steppers, self._runner, *_ = captured_to_step(target, progress)
        self.capture, self.raw = captured
        self._progress = progress
        self._starts = list(accumulate((each.count for each in self._steppers), initial=0))
        self._running = contextlib.ExitStack()
        self._graph: int | None = None
        """The graph whose memory is in use."""
        self._position = self._replay = 0
        self._nan_seen = self._interrupted = self._evaluates = False

    def serve(self, talk: Talk) -> None:
        """Answer until there are no more questions, of which the first is to begin a replay. Raises
        CgtoolError if an expression makes the device unusable."""
        signal.signal(signal.SIGINT, self._interrupt)
        answer = Answer()
        self._progress("prompt")
        with self._running, watched(self._steppers, self.capture, self._progress):
            while (question := talk(answer)) is not None and answer.fault is None:
                answer = self._answer(question)

    def _interrupt(self, _number: int, _frame: Any) -> None:
        self._interrupted = True
        if self._evaluates:
            raise KeyboardInterrupt

    def _answer(self, question: Question) -> Answer:
        match question:
            case RunTo():
                return self._run(question)
            case Begin():
                self._begin(restore=question.restore)
                return self._here()
            case Evaluate():
                return self._evaluate(question)

    def _begin(self, *, restore: bool) -> None:
        self._running.close()
        self._graph = None
        self._replay = 1 if restore else self._replay + 1
        if restore:
            self._runner.begin_replay(TRIAL)
        self._position, self._nan_seen = 0, False
        self._stepper(0)

    def _stepper(self, position: int) -> tuple[Stepper, int]:
        """For the node at a position: its stepper, whose memory is in use from now on, and its
        index there."""
        graph = bisect_right(self._starts, position) - 1
        if graph != self._graph:
            self._running.close()
            self._running.enter_context(self._steppers[graph].running())
            self._graph = graph
        return self._steppers[graph], position - self._starts[graph]

    def _run(self, question: RunTo) -> Answer:
        stops, self._interrupted = set(question.stops), False
        while self._position < question.position:
            stepper, node = self._stepper(self._position)
            try:
                stepper.run(node)
            except StepFailedError as error:
                found = fault(self.capture, self._steppers, error, self._replay)
                return Answer(self._position, fault=found)
            self._position += 1
            if question.nan and not self._nan_seen:
                self._nan_seen = any(each.nans for each in values_at(stepper, node) or ())
                if self._nan_seen:
                    return self._here("the first NaN")
            if self._interrupted:
                return self._here("interrupted")
            if self._position in stops:
                break
        return self._here()

    def _here(self, because: str | None = None) -> Answer:
        values = None
        if self._position:
            stepper, node = self._stepper(self._position - 1)
            values = values_at(stepper, node)
            if node in stepper.whole:
                because = stepper.whole[node]
        now, ahead = self._tensors()
        names = (*now, *(f"next.{name}" for name in ahead))
        return Answer(self._position, values or (), names, because=because)

    def _tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """What expressions can use, by name: of the op that has run, and of the next one, if it is
        of the same graph."""
        now: dict[str, torch.Tensor] = {}
        ahead: dict[str, torch.Tensor] = {}
        if self._position:
            stepper, node = self._stepper(self._position - 1)
            now = dict((*stepper.given(node), *stepper.written(node)))
        if self._position == 0 or self._position not in self._starts:
            stepper, node = self._stepper(self._position)
            ahead = dict(stepper.given(node))
        return now, ahead

    def _evaluate(self, question: Evaluate) -> Answer:
        here, expression = self._here(), question.expression
        text = ""
        try:
            try:
                self._evaluates = True
                with raw():
                    value = eval(expression, {"torch": torch, **self._copies(expression)})
                    if question.file is None:
                        text = repr(value)
                    else:
                        _save(expression, value, Path(question.file))
            finally:
                self._evaluates = False
        except BaseException as error:  # whatever an expression raises
            return self._failed(expression, error, here)
        return replace(here, text=text)

    def _copies(self, expression: str) -> dict[str, Any]:
        """The tensors that an expression may mean: it may write them."""
        words = set(_WORD.findall(expression))
        now, ahead = (
            {name: held(each.detach()).clone() for name, each in known.items() if name in words}
            for known in self._tensors()
        )
        return {**now, "next": SimpleNamespace(**ahead)}

    def _failed(self, expression: str, error: BaseException, here: Answer) -> Answer:
        try:
            self._runner.target.device.synchronize()
        except RuntimeError:
            raise user_code(
                f"`{expression}` failed on the device, which cannot be used afterwards: "
                f"{first_line(error)}"
            ) from None
        if isinstance(error, CgtoolError):
            text = error.failure.message
        else:
            message = error.msg if isinstance(error, SyntaxError) else first_line(error)
            text = f"{type(error).__name__}: {message}"
        return replace(here, error=text)


def _save(name: str, value: Any, file: Path) -> None:
    """A file that ``torch.load`` reads as a dict with one tensor. Raises CgtoolError."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{type(value).__name__} is not a tensor")
    with atomic(file) as temporary:
        torch.save({name: value.cpu()}, temporary)
