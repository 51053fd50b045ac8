"""How many failure modes are recognised: `python benchmarks/findings.py [--device gpu|simulated]`.

Runs the wrong and the right example of every page of docs/findings by the page's own command.
``--save FILE`` keeps the outcome as JSON; ``--table GPU.json SIMULATED.json`` writes the index of
the pages, docs/findings/README.md, from two of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cgtool.findings.registry import codes, page  # noqa: E402
from tests.findings.suite import command_of, pages_for, run  # noqa: E402


def measure(device: str, jobs: int, only: list[str]) -> dict[str, dict[str, object]]:
    """By code: whether the mark was found, what else, and whether the right one is innocent."""
    wanted = [code for code in pages_for(device) if not only or code in only]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(code: str, example: str):
            place = Path(folder) / f"{code}-{example}"
            place.mkdir()
            return run(code, example, device, place)

        running = {
            code: [pool.submit(one, code, example) for example in ("wrong", "right")]
            for code in wanted
        }
        found = {}
        for code, (wrong, right) in running.items():
            a, b = wrong.result(), right.result()
            found[code] = {
                "found": a.ok,
                "innocent": b.ok,
                "missed": list(a.missed),
                "seen": list(a.found),
                "seen_in_right": list(b.found),
                "error": a.error or b.error,
            }
    return found


def show(found: dict[str, dict[str, object]], device: str) -> None:
    for code, one in found.items():
        if not one["found"]:
            print(f"missed       {code}: {one['missed']} seen {one['seen']} {one['error']}")
        if not one["innocent"]:
            print(f"false alarm  {code}: {one['seen_in_right']} {one['error']}")
    recognised = sum(bool(one["found"]) for one in found.values())
    innocent = sum(bool(one["innocent"]) for one in found.values())
    print(
        f"{device}: {recognised} of {len(found)} recognised at their line, "
        f"{innocent} of {len(found)} right examples innocent; "
        f"{len(codes()) - len(found)} of {len(codes())} cannot be found there"
    )


def table(gpu: dict[str, dict[str, object]], simulated: dict[str, dict[str, object]]) -> str:
    lines = [
        "# Findings",
        "",
        "Every code has a page with a wrong and a right example; `cgtool explain CODE` prints it.",
        "The tests run the examples by the page's own command. This table is made from such a run,",
        "`python benchmarks/findings.py`, on an NVIDIA H200 (torch 2.11.0+cu130, driver 580) and",
        "on the simulated device (torch 2.13.0). *missed*: not recognised at its line.",
        "",
        f"On the GPU {_count(gpu)}, on the simulated device {_count(simulated)}.",
        "",
    ]
    for category in sorted({page(code).head.category for code in codes()}):
        lines += [
            f"## {category}",
            "",
            "| code | severity | what is wrong | GPU | simulated |",
            "|---|---|---|---|---|",
        ]
        for code in codes():
            head = page(code).head
            if head.category == category:
                lines.append(
                    f"| [{code}]({code}.md) | {head.severity} | {head.title} "
                    f"| {_cell(code, 'gpu', gpu)} | {_cell(code, 'simulated', simulated)} |"
                )
        lines.append("")
    return "\n".join(lines)


def _count(found: dict[str, dict[str, object]]) -> str:
    recognised = sum(bool(one["found"]) for one in found.values())
    return f"{recognised} of {len(codes())} codes are recognised"


def _cell(code: str, device: str, found: dict[str, dict[str, object]]) -> str:
    command = command_of(page(code), device)
    if command is None:
        head = page(code).head
        reason = (head.gpu if device == "gpu" else head.simulated).removeprefix("no:").strip()
        return f"no: {reason}"
    if code not in found:
        return "not run"
    words = [word for word in command.split() if not word.isupper() and "=" not in word]
    return words[0] if found[code]["found"] else "*missed*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["gpu", "simulated"], default="simulated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--table", type=Path, nargs=2)
    parser.add_argument("codes", nargs="*")
    given = parser.parse_args()
    if given.table:
        gpu, simulated = (json.loads(path.read_text()) for path in given.table)
        (ROOT / "docs" / "findings" / "README.md").write_text(table(gpu, simulated))
        return
    found = measure(given.device, given.jobs, given.codes)
    if given.save:
        given.save.write_text(json.dumps(found, indent=1))
    show(found, given.device)


if __name__ == "__main__":
    main()
