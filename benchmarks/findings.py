"""How many failure modes are recognized: `python benchmarks/findings.py [--device gpu|simulated]`.

Runs the wrong and the right example of every page of docs/findings by the page's own command.
``--save FILE`` keeps the outcome as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cgtool.findings import codes  # noqa: E402
from tests.findings.suite import pages_for, run  # noqa: E402


def measure(device: str, jobs: int, only: list[str]) -> dict[str, dict[str, object]]:
    """By code: whether the mark was found, what else, and whether the right one is innocent."""
    wanted = [code for code in pages_for(device) if not only or code in only]
    pool, outcomes = ThreadPoolExecutor(jobs), {}
    # As `on_gpu.py` ends a job in time: what is known by then counts.
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):

        def run_example(code: str, example: str):
            place = Path(folder) / f"{code}-{example}"
            place.mkdir()
            return run(code, example, device, place)

        running = {
            code: [pool.submit(run_example, code, example) for example in ("wrong", "right")]
            for code in wanted
        }
        for code, (wrong, right) in running.items():
            a, b = wrong.result(), right.result()
            outcomes[code] = {
                "found": a.ok,
                "innocent": b.ok,
                "missed": list(a.missed),
                "seen": list(a.findings),
                "seen_in_right": list(b.findings),
                "error": a.error or b.error,
            }
    pool.shutdown(wait=False, cancel_futures=True)
    if len(outcomes) < len(wanted):
        print(f"stopped after {len(outcomes)} of {len(wanted)}")
    return outcomes


def show(outcomes: dict[str, dict[str, object]], device: str) -> None:
    for code, outcome in outcomes.items():
        if not outcome["found"]:
            seen_instead = f"{outcome['seen']} {outcome['error']}"
            print(f"missed       {code}: {outcome['missed']} seen {seen_instead}")
        if not outcome["innocent"]:
            print(f"false alarm  {code}: {outcome['seen_in_right']} {outcome['error']}")
    recognized = sum(bool(outcome["found"]) for outcome in outcomes.values())
    innocent = sum(bool(outcome["innocent"]) for outcome in outcomes.values())
    print(
        f"{device}: {recognized} of {len(outcomes)} recognized at their line, "
        f"{innocent} of {len(outcomes)} right examples innocent; "
        f"{len(codes()) - len(outcomes)} of {len(codes())} cannot be found there"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["gpu", "simulated"], default="simulated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path)
    parser.add_argument("codes", nargs="*")
    given = parser.parse_args()
    outcomes = measure(given.device, given.jobs, given.codes)
    if given.save:
        given.save.write_text(json.dumps(outcomes, indent=1))
    show(outcomes, given.device)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
