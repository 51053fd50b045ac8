"""ENTRY to Workload: the way into cgtool for the user's code."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from cgtool.model.failure import CgtoolError
from cgtool.observe.annotations import install as install_annotations
from cgtool.program import devices, grammar
from cgtool.program.attempt import load_error
from cgtool.program.blame import own_fault
from cgtool.program.classify import Classifier
from cgtool.program.imports import find
from cgtool.program.seeding import seed_all
from cgtool.program.spec import parse
from cgtool.program.workload import Workload


@contextlib.contextmanager
def _arguments_of(program: str) -> Iterator[None]:
    """``sys.argv`` as the user's file would find it: its own name and nothing else."""
    before = sys.argv
    sys.argv = [program]
    try:
        yield
    finally:
        sys.argv = before


def _classified(classifier: Classifier, value: Any) -> Workload:
    try:
        workload = classifier.classify(value)
        notes = devices.check(workload, classifier.device)
        return dataclasses.replace(workload, notes=(*workload.notes, *notes))
    except CgtoolError:
        raise
    except Exception as error:
        # A __len__ or a property of the user's, asked while looking at what it is.
        if own_fault(error):
            raise
        raise load_error(classifier.spec, error, otherwise=classifier.frames) from error


def load(
    spec: str, *, device: str, inputs: tuple[str, ...] = (), seed: int | None = None
) -> Workload:
    """Load an entry point on ``device`` (``cpu``, ``cuda``, ``cuda:1``).

    Raises CgtoolError: exit 2 for a wrong ENTRY or --input, 4 for what the user's code raises or
    returns, with the user's frames. KeyboardInterrupt passes.
    """
    entry = parse(spec)
    specs = grammar.parse_all(inputs)
    seed_all(seed)
    install_annotations()
    with _arguments_of(entry.target):
        module, owner, value = find(entry)
        return _classified(Classifier(spec, entry.name, module, owner, device, specs), value)
