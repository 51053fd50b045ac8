"""Check many scripts on the simulated device, each in its own process, forked from one
that has PyTorch loaded: JSON of paths on standard input, JSON of outcomes on standard output."""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from cgtool.devices.simulated.cudagraph import check_script
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.failure import CgtoolError


def _check(path: str, settings: dict[str, str]) -> dict:
    os.environ.update(settings)
    os.chdir(Path(path).parent)
    failure = failed_at = None
    try:
        findings, looked = check_script(path, (), lambda _phase: None, ScriptDevice())
    except CgtoolError as error:
        findings, looked = error.failure.findings, ()
        failure = error.failure.message
        failed_at = next((frame.line for frame in error.failure.frames if frame.file == path), None)
    return {
        "findings": [
            [finding.code, finding.frames[0].line if finding.frames else None, finding.reason]
            for finding in findings
        ],
        "looked": list(looked),
        "failure": failure,
        "failed_at": failed_at,
    }


def _in_child(path: str, settings: dict[str, str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer", Path(folder) / "log"
        process = os.fork()
        if process == 0:
            with log.open("w") as text:
                os.dup2(text.fileno(), 1)
                os.dup2(text.fileno(), 2)
                try:
                    answer.write_text(json.dumps(_check(path, settings)))
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
            os._exit(0)
        os.waitpid(process, 0)
        if answer.exists():
            return json.loads(answer.read_text())
        return {
            "findings": [],
            "looked": [],
            "failed_at": None,
            "failure": "crashed: " + log.read_text()[-2000:],
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs = json.load(sys.stdin)
    json.dump({path: _in_child(path, settings) for path, settings in jobs.items()}, sys.stdout)
