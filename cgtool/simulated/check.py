"""``cgtool check`` on the simulated device: every hazard of a capture in one run."""

from __future__ import annotations

import gc

import torch

from cgtool.entry.attempt import Progress
from cgtool.entry.resolve import warmup_iters
from cgtool.entry.workload import Workload
from cgtool.hazards import preflight, repeat
from cgtool.hazards.optimizers import Steps
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions
from cgtool.record.annotations import watch as watch_annotations
from cgtool.simulated.backend import Session, capture_all, roots_of, warm_up
from cgtool.simulated.streams import Device


def check(
    device: Device, workload: Workload, options: CaptureOptions, progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """All findings, and what was looked at.

    Raises CgtoolError when the code fails in eager mode already.
    """
    session = Session(device, workload, options)
    findings = device.findings
    device.collecting = True
    if options.seed is not None:
        torch.manual_seed(options.seed)
    for finding in preflight.look(workload, options):
        findings.add(finding)
    iterations, _ = warmup_iters(workload, options)
    with watch_annotations(options.annotations) as annotations:
        warm_up(session, max(1, iterations - 2), progress)
        progress("compare two iterations")
        with Steps() as steps:
            found, _ = repeat.compare(
                lambda: warm_up(session, 1, lambda _text: None), roots_of(workload), annotations
            )
        for finding in (*steps.findings(), *found):
            findings.add(finding)
        gc.collect()
        try:
            capture_all(session, annotations, progress)
        except CgtoolError as error:
            if not error.failure.findings:
                raise
            for finding in error.failure.findings:
                findings.add(finding)
    return findings.all(), (
        "settings, modules and optimizers",
        "two eager iterations, held against each other",
        "a simulated capture that goes on after a refusal",
    )
