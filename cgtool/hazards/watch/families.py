"""All checks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from cgtool.hazards.watch.callables import Callables
from cgtool.hazards.watch.check import Check
from cgtool.hazards.watch.collectives import Collectives
from cgtool.hazards.watch.gradients import Gradients, StaleNodes
from cgtool.hazards.watch.inputs import Copies, Inputs
from cgtool.hazards.watch.libraries import Budget, Calls, Workspaces
from cgtool.hazards.watch.memory import Memory
from cgtool.hazards.watch.misuse import Autocast, Finalizers, Misuse, Randomness, Templates
from cgtool.hazards.watch.modules import Modes
from cgtool.hazards.watch.numbers import Numbers
from cgtool.hazards.watch.outputs import Outputs, Remains
from cgtool.hazards.watch.pools import SharedPools, Unordered
from cgtool.hazards.watch.speed import Captures, Feeding, Launches, Waits
from cgtool.hazards.watch.steps import Steps

if TYPE_CHECKING:
    from cgtool.hazards.watch.run import Watch


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
