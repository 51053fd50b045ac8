"""What the start of a recording costs the program: modules that it imports, and no collection."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cgtool.model.program import Settings

ROOT = Path(__file__).parents[2]

PROGRAM = """
import gc, json, sys
import torch

class Eager:
    # From here on the collector runs as often as it can.
    def find_spec(self, name, path=None, target=None):
        if name == "cgtool.recorder.process":
            gc.set_threshold(1)

collections = []
def collects(phase, info):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _record.__code__:
            collections.append(info)
        frame = frame.f_back

torch.version.cuda = "13.0"
torch.cuda._device_count_nvml = lambda: 1
gc.callbacks.append(collects)
sys.meta_path.insert(0, Eager())
from cgtool.recorder.begin import _record, begin
before = set(sys.modules)
begin(sys.argv[1])
gc.callbacks.remove(collects)
new = sorted(set(sys.modules) - before)
print(json.dumps({"new": new, "collections": len(collections), "is_on": gc.isenabled()}))
"""

OWN = """
cgtool.devices cgtool.devices.cuda cgtool.devices.cuda.recorded_device
cgtool.model.capture cgtool.model.files cgtool.model.finding cgtool.model.failure
cgtool.model.journal cgtool.model.ledger cgtool.model.measurements cgtool.model.notebook
cgtool.model.records cgtool.model.schema
cgtool.observe cgtool.observe.frames cgtool.observe.generated cgtool.observe.graphs
cgtool.observe.waiting
cgtool.recorder.adapters cgtool.recorder.addresses cgtool.recorder.capture
cgtool.recorder.capture_failure cgtool.recorder.captures cgtool.recorder.costs
cgtool.recorder.eager_steps cgtool.recorder.events cgtool.recorder.later
cgtool.observe.captured_calls
cgtool.recorder.note_counters cgtool.recorder.notes cgtool.recorder.process
cgtool.recorder.recorded_device cgtool.recorder.recorder cgtool.recorder.replays
cgtool.torch_compat.inductor cgtool.torch_compat.op_watch cgtool.torch_compat.patches
cgtool.torch_compat.private cgtool.torch_compat.weak
"""
"""The program waits for these when it imports PyTorch, whether it captures graphs or not."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a process that is recorded as on a GPU."""
    folder = tmp_path_factory.mktemp("start")
    settings = Settings(str(ROOT), str(folder), "", "", "", "", "")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, settings.text],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.lost"))
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_only_what_follows_graphs_is_imported(facts: dict[str, Any]) -> None:
    own = {name for name in facts["new"] if name.startswith("cgtool")}
    assert own == set(OWN.split())
    others = {name.partition(".")[0] for name in set(facts["new"]) - own}
    others = {name for name in others if not name.startswith("_sysconfigdata")}
    assert others - sys.stdlib_module_names == {"msgspec", "torch"}


def test_no_collection_runs_meanwhile(facts: dict[str, Any]) -> None:
    assert facts["collections"] == 0
    assert facts["is_on"]
