"""A job on a function that is at hand, in the process that has it: its workload, and what is set
back at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from cgtool.devices.device import quiet
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.jobs.dispatch import RUN, JobContext, JobResult, open_device
from cgtool.jobs.verify.state import Snapshot
from cgtool.model import jobs
from cgtool.model.failure import usage
from cgtool.observe.annotations import install as install_annotations
from cgtool.observe.tensors import DEVICE, on_host, put
from cgtool.program.callables import definition_of, describe
from cgtool.program.objects import attribute, unwrapped
from cgtool.program.reach import Reachable
from cgtool.program.workload import Workload
from cgtool.torch_compat.dispatch_keys import Args


def run(
    job: jobs.CaptureJob | jobs.VerifyJob,
    function: Callable[..., Any],
    args: Args,
    kwargs: Mapping[str, Any],
) -> JobResult:
    """Do the job on ``function(*args, **kwargs)``: on the GPU that has a tensor which it reaches,
    else on the simulated device, whose tensors the CPU's are meanwhile.

    What the job changes in what the function reaches is set back. Raises CgtoolError.
    """
    reachable = Reachable([("", function), ("argument", args), ("argument", dict(kwargs))])
    tensors = [tensor for _, tensor in reachable.tensors.values()]
    on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
    if on_gpu or not tensors:
        device = open_device(str(on_gpu[0]) if on_gpu else None)
    else:
        device = SimulatedDevice("its tensors are on the CPU")
    install_annotations()
    context = _FunctionContext(
        device, quiet, function=function, args=args, kwargs=kwargs, reachable=reachable
    )
    try:
        return RUN[type(job)](job, context)
    finally:
        if context.before is not None:
            context.before.restore()


@dataclass
class _FunctionContext(JobContext):
    function: Callable[..., Any] = field(kw_only=True)
    args: Args = field(kw_only=True)
    kwargs: Mapping[str, Any] = field(kw_only=True)
    reachable: Reachable = field(kw_only=True)
    before: Snapshot | None = None
    """The state to restore; None until there is a workload."""

    def load(self, job: jobs.Job) -> Workload:
        """Raises CgtoolError: exit 2 for arguments that the function does not take, 4 for what
        cannot be captured."""
        if self.device.simulated_because is not None:
            for tensor in _of_device(self.reachable):
                put(tensor, DEVICE)
        called = describe(self.function)
        problem = called.never_runs or called.mismatch(self.args, dict(self.kwargs))
        if problem:
            raise usage(
                f"{called.name}{called.signature_text()}: {problem}",
                fix="give the arguments of one call after the function",
            )
        has_inputs = self.args or self.kwargs or isinstance(self.function, torch.nn.Module)
        module = sys.modules.get(str(attribute(unwrapped(self.function), "__module__")))
        frame = definition_of(self.function, module or sys.modules["__main__"], called.name)
        workload = Workload(job.spec, "callable" if has_inputs else "step", (), frame)
        call = (called.name, self.function, self.args, dict(self.kwargs))
        workload.add_parts([call], self.device.factory_device)
        if workload.refusals:
            raise workload.refusals[0]
        self.before = Snapshot(workload, self.device)
        return workload


def _of_device(reachable: Reachable) -> Iterator[torch.Tensor]:
    """The tensors of the CPU that would be on a GPU if the program moved to one: all but the step
    counts of optimizers that keep them on the host, and the batch sizes of packed sequences."""
    on_cpu: set[int] = set()
    for _, value in reachable.objects.values():
        if isinstance(value, PackedSequence):
            on_cpu.add(id(value.batch_sizes))
        elif isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                if not (group.get("capturable") or group.get("fused")):
                    states = (value.state.get(parameter, {}) for parameter in group["params"])
                    on_cpu |= {id(state.get("step")) for state in states}
    for _, tensor in reachable.tensors.values():
        if id(tensor) not in on_cpu and tensor.device.type == "cpu" and on_host(tensor):
            yield tensor
