"""Verification on the simulated device, whose replays are real."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.jobs.verify.procedure import verify
from cgtool.model.options import CaptureOptions, VerifyOptions
from cgtool.program.load import load

FOLDER = Path(__file__).parent


def silent(_text):
    """No progress."""


@pytest.fixture
def autocast_off():
    yield
    for kind in ("cpu", "cuda"):
        torch.set_autocast_enabled(kind, False)
    torch.clear_autocast_cache()


@pytest.fixture
def verified(autocast_off):
    """Verify ``file.py:name``; returns the outcome."""

    def run(spec, capture=None, **options):
        torch.manual_seed(0)
        device = SimulatedDevice("test")
        with device.active():
            workload = load(str(FOLDER / spec), device="cuda")
            target = device.verify_target(workload, capture or CaptureOptions())
            return verify(target, VerifyOptions(**options), silent)

    return run


@pytest.fixture
def target(autocast_off):
    """A target that is warmed up and captured nowhere yet, inside the session of the test."""
    device = SimulatedDevice("test")
    with device.active():

        def make(spec):
            workload = load(str(FOLDER / spec), device="cuda")
            return device.verify_target(workload, CaptureOptions())

        yield make
