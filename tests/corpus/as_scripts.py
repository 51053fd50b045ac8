"""The factories of the corpus as scripts that capture them by hand: another way into the same code.

A script imports a factory, warms its step up on a side stream, captures it with its backward, and
replays it four times with other values in its inputs. What is marked in the factory is to be found
there, as it is where cgtool captures the step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.corpus.catalog import Entry

_TEMPLATE = """\
import sys

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, {folder!r})
from {theme} import {name} as factory

torch.manual_seed(0)
made = factory({device})
function, *given = made if isinstance(made, tuple) else (made,)
arguments = given[0] if given else ()
arguments = (arguments,) if isinstance(arguments, torch.Tensor) else arguments
words = given[1] if len(given) > 1 else {{}}


def tensors_in(value):
    return [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def step():
    out = function(*arguments, **words)
    losses = [each for each in tensors_in(out) if each.requires_grad]
    if losses and runs_backward:
        sum(each.abs().sum() for each in losses).backward()
    return out


inputs = [each for each in tensors_in((arguments, words)) if each.is_floating_point()]
inputs = [each for each in inputs if not each.is_inference()]
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    runs_backward = True
    try:
        step()
    except RuntimeError as error:
        if "a second time" not in str(error) and "inplace operation" not in str(error):
            raise
        runs_backward = False  # the step runs its own
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
{registering}\
with torch.cuda.graph(graph):
    out = step()
results = [each for each in tensors_in(out) if not each.is_complex()]
for _ in range(4):
    with torch.no_grad():
        for each in inputs:
            each.mul_(0.9)
    graph.replay()
    torch.cuda.synchronize()
    print(*[each.detach().float().sum().item() for each in results])
"""
_REGISTERING = """\
reached, left = {}, [function, arguments, words]
while left:
    each = left.pop()
    is_of_a_module = isinstance(each, dict) and "__spec__" in each
    if id(each) in reached or is_of_a_module or isinstance(each, (type, types.ModuleType)):
        continue
    reached[id(each)] = each
    left += gc.get_referents(each)
    if isinstance(each, torch.Generator) and each.device.type == "cuda":
        graph.register_generator_state(each)
del reached, each
"""
NOT_AS_SCRIPTS = {
    # Nothing in the script reads what these leave on the host.
    "guilty_mixed:pinned_results",
    "rates_and_records:records_every_output",
    # Their forward and backward are one graph here.
    "guilty_training:checkpoint_rng",
    "less_direct_reads:checkpoint_reentrant",
    # What it raises is marked where PyTorch puts tensors on two devices together.
    "memory_and_addresses:model_left_on_the_host",
}
"""By key: entries whose marks do not hold for such a script."""


@dataclass(frozen=True)
class AsScript(Entry):
    """A factory, as a script."""

    script: Path = field(kw_only=True)

    @property
    def is_script(self) -> bool:
        return True

    @property
    def spec(self) -> str:
        return str(self.script)


def as_scripts(chosen: Iterable[Entry], folder: Path) -> Iterator[AsScript]:
    """Write the scripts of factories to a folder."""
    for entry in chosen:
        if entry.is_script or entry.key in NOT_AS_SCRIPTS:
            continue
        tree = ast.parse(entry.file.read_text())
        takes_device = any(
            isinstance(node, ast.FunctionDef) and node.name == entry.name and node.args.args
            for node in tree.body
        )
        has_generators = "torch.Generator(" in entry.file.read_text()
        source = _TEMPLATE.format(
            folder=str(entry.file.parent),
            theme=entry.theme,
            name=entry.name,
            device='"cuda"' if takes_device else "",
            registering=_REGISTERING if has_generators else "",
        )
        script = folder / f"{entry.theme}__{entry.name}.py"
        script.write_text(("import gc\nimport types\n" if has_generators else "") + source)
        yield AsScript(
            entry.theme,
            entry.name,
            entry.file,
            entry.guilty,
            entry.reasons,
            entry.depends,
            script=script,
        )
