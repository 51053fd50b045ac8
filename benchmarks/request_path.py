"""How many files a reader opens to follow one request from the command line to the table.

The reader reads each function once, when it first runs, in the command's process and in its worker
process, whose part comes where the worker starts. Functions that run while a module is imported
(decorators, declared codes) and bodies of modules and classes are not followed. The sequence of the
files of these functions then has

- *files*: distinct source files of cgtool;
- *returns*: places where the sequence goes back to a file that was left before.

"the request" counts only the layers that pass it on, from the command to the workload that runs
(``PASSING``); "all" counts those that observe, store and show it too. ``--tree DIR`` follows the
request through another checkout, for example an older one, and ``--list`` prints the sequence. The
counts do not depend on the machine's speed.

    python benchmarks/request_path.py check samples/mlp.py:build --device simulated
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSING = ("cli", "worker", "jobs", "program", "entry")
"""The layers that a request passes; ``entry`` is the name that ``program`` had once."""

TRACER = """
import os, sys, threading, time

package, folder = os.environ["REQUEST_PATH"].split(os.pathsep)
read = set()
# Written at once: the command ends its worker as soon as it has answered.
output = os.open(os.path.join(folder, str(os.getpid())), os.O_WRONLY | os.O_CREAT)


def is_import(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            if code.co_filename.startswith(package):
                return True
        frame = frame.f_back
    return False


def trace(frame, event, _argument):
    code = frame.f_code
    if code in read or not code.co_filename.startswith(package):
        return
    # 1: CO_OPTIMIZED, which bodies of modules and classes do not have.
    if not code.co_flags & 1 or code.co_name[0] == "<":
        read.add(code)
    elif not is_import(frame):
        read.add(code)
        file = code.co_filename[len(package):]
        os.write(output, f"{time.monotonic_ns()} {file} {code.co_qualname}\\n".encode())


threading.settrace(trace)
sys.settrace(trace)
"""

Call = tuple[int, str, str]
"""Time in nanoseconds, file, function."""


def call_of(line: str) -> Call:
    when, file, function = line.split(" ", 2)
    return int(when), file, function


def followed(tree: Path, command: list[str]) -> list[Call]:
    """The functions of cgtool in the order of their first calls, the worker's in their place."""
    with tempfile.TemporaryDirectory(prefix="cgtool-") as name:
        site, folder = Path(name, "site"), Path(name, "calls")
        site.mkdir()
        folder.mkdir()
        (site / "sitecustomize.py").write_text(TRACER)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(site), str(tree))),
            "REQUEST_PATH": os.pathsep.join((f"{tree / 'cgtool'}/", str(folder))),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cgtool", *command],
            cwd=name,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        sys.stdout.write(done.stdout)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        processes = [
            [call_of(line) for line in path.read_text().splitlines()] for path in folder.iterdir()
        ]
    calls, *workers = sorted(filter(None, processes), key=lambda process: process[0][0])
    for worker in workers:
        at = sum(when < worker[0][0] for when, _, _ in calls)
        calls[at:at] = worker
    return calls


def visits_of(calls: Iterable[Call]) -> list[tuple[str, list[str]]]:
    """The files in the order in which they are opened, each with the functions read there."""
    return [
        (file, [function for _, _, function in group])
        for file, group in groupby(calls, key=lambda call: call[1])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to follow")
    parser.add_argument("--list", action="store_true", help="print every file and its functions")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="arguments of cgtool")
    options = parser.parse_args()
    tree = options.tree.resolve()
    command = [
        str(tree / word) if (tree / word.partition(":")[0]).is_file() else word
        for word in options.command
    ]
    calls = followed(tree, command)
    passing = [call for call in calls if call[1].startswith(PASSING)]
    for title, part in (("the request", passing), ("all", calls)):
        visits = visits_of(part)
        files = {file for file, _ in visits}
        if options.list:
            print()
            seen: set[str] = set()
            for file, functions in visits:
                print("back to" if file in seen else "       ", file, *functions)
                seen.add(file)
        print(f"{title:<12}{len(files):4} files{len(visits) - len(files):5} returns")


if __name__ == "__main__":
    main()
