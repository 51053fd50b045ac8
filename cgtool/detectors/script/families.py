"""All checks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from cgtool.detectors.script.callables import Callables
from cgtool.detectors.script.check import Check
from cgtool.detectors.script.collectives import Collectives
from cgtool.detectors.script.gradients import Gradients, StaleNodes
from cgtool.detectors.script.inputs import Copies, Inputs
from cgtool.detectors.script.libraries import Budget, Calls, Workspaces
from cgtool.detectors.script.memory import Memory
from cgtool.detectors.script.misuse import Autocast, Finalizers, Misuse, Randomness, Templates
from cgtool.detectors.script.modules import Modes
from cgtool.detectors.script.numbers import Numbers
from cgtool.detectors.script.outputs import Outputs, Remains
from cgtool.detectors.script.pools import SharedPools, Unordered
from cgtool.detectors.script.speed import Captures, Feeding, Launches, Waits
from cgtool.detectors.script.steps import Steps

if TYPE_CHECKING:
    from cgtool.detectors.script.run import Watch


def all_checks(watch: Watch, stack: ExitStack) -> list[Check]:
    """One of each family, in the order in which they are told; what they hook ends with
    ``stack``."""
    inputs = Inputs(watch)
    return [
        Callables(watch, stack),
        inputs,
        Copies(watch),
        Numbers(watch),
        Modes(watch, inputs, stack),
        Gradients(watch, stack),
        StaleNodes(watch),
        Steps(watch, stack),
        Outputs(watch),
        Remains(watch),
        SharedPools(watch),
        Unordered(watch),
        Misuse(watch),
        Autocast(watch, stack),
        Randomness(watch, stack),
        Finalizers(watch),
        Templates(watch),
        Workspaces(watch),
        Budget(watch, stack),
        Calls(watch, stack),
        Collectives(watch, stack),
        Memory(watch),
        Waits(watch),
        Launches(watch),
        Captures(watch),
        Feeding(watch),
    ]
