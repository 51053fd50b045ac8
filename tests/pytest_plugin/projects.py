"""A small project to test in, and how its tests are run."""

from __future__ import annotations

# pytester forgets what a run in this process imports, but not that its package has it: the next run
# would mix two copies of the plugin, and not catch what the other copy raises. PyYAML's C extension
# does not work with a second copy of its package.
import yaml  # noqa: F401

import cgtool.pytest_plugin.graph
import cgtool.pytest_plugin.marker  # noqa: F401

MODEL = """\
import torch
from torch import nn


def build(device):
    model = nn.Linear(4, 4).to(device)
    return lambda x: model(x).relu(), (torch.randn(2, 4, device=device),)


def larger(device):
    model = nn.Linear(4, 4).to(device)
    return lambda x: model(x).relu().sin().sin(), (torch.randn(2, 4, device=device),)


def reads(device):
    def f(x):
        return x * x.sum().item()

    return f, (torch.randn(4, device=device),)


def counts(device):
    calls = [0]

    def f(x):
        calls[0] += 1
        return x * calls[0]

    return f, (torch.randn(4, device=device),)


def double(x):
    print("double was called")
    return x * 2
"""


def write(pytester, tests, model=MODEL):
    """``model.py`` and ``tests/test_model.py`` below an empty ``pytest.ini``."""
    pytester.makeini("[pytest]")
    pytester.path.joinpath("model.py").write_text(model)
    folder = pytester.path / "tests"
    folder.mkdir(exist_ok=True)
    folder.joinpath("test_model.py").write_text("import pytest\n" + tests)


def run(pytester, *arguments, device="simulated"):
    """In this process. The device is named, so that it is the same where there is a GPU."""
    chosen = () if device is None else ("--cudagraph-device", device)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *chosen, *arguments)
