"""Are the verdicts right? `python benchmarks/corpus.py [FAMILY|NAME...] [--truth]`.

Runs `check` and `verify` over the corpus of tests/corpus and compares the answers with its marks:
faulty programs must be found at their line, correct ones must be free of errors and warnings.
``--sample N`` draws N programs at random, by ``--seed``, in random order: a run that is cut short
is a random sample, too. ``--no-holdout`` leaves out the programs that are held out, ``--holdout``
the others. ``--truth`` compares the marks with a GPU instead, with plain PyTorch and without
cgtool. ``--save FILE`` keeps one JSON line for each program; ``--record`` writes the names of those
that are judged wrongly to tests/corpus/wrong.txt. Exit code 1 if a verdict is wrong that is not
listed there, or if a mark is wrong. Wrong verdicts on programs that are held out are counted, and
not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.corpus.catalog import Program, programs  # noqa: E402
from tests.corpus.judge import (  # noqa: E402
    ALARM,
    AT_LINE,
    CLEAN,
    ELSEWHERE,
    MISSED,
    UNDECIDED,
    WRONG,
    Verdict,
    known_wrong,
    verdicts,
)
from tests.corpus.truth import GROUP, agrees_with, truths  # noqa: E402
from tests.forked_workers import preload  # noqa: E402

COLUMNS = {
    "faulty": (AT_LINE, ELSEWHERE, MISSED),
    "at the line": (AT_LINE,),
    "anywhere": (AT_LINE, ELSEWHERE),
    "missed": (MISSED,),
    "correct": (CLEAN, ALARM, UNDECIDED),
    "false alarms": (ALARM,),
    "cannot tell": (UNDECIDED,),
}
"""By heading, the outcomes that are counted in it."""


def print_table(judged: list[Verdict]) -> None:
    """Counts by family, kind and whether a program is held out."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for verdict in judged:
        program = verdict.program
        kind = "scripts" if program.is_script else "entries"
        part = "holdout" if program.is_holdout else "others"
        for row in ((program.family, kind, part), ("all", kind, part), ("all", "", "")):
            counts.setdefault(row, Counter())[verdict.outcome] += 1
    print(f"{'family':20}{'kind':9}{'part':9}" + "".join(f"{name:>13}" for name in COLUMNS))
    for family, kind, part in sorted(counts, key=lambda row: (row[0] == "all", row[1] == "", row)):
        outcomes = counts[family, kind, part]
        cells = (sum(outcomes[each] for each in group) for group in COLUMNS.values())
        print(f"{family:20}{kind:9}{part:9}" + "".join(f"{cell:13}" for cell in cells))


def judge(
    chosen: list[Program], device: str | None, jobs: int, save: Path | None, *, record: bool
) -> int:
    judged = []
    # As `on_gpu.py` ends a job in time: what is known by then counts.
    with Path(save or os.devnull).open("w") as file, contextlib.suppress(KeyboardInterrupt):
        for verdict in verdicts(chosen, device, jobs):
            judged.append(verdict)
            line = {"program": verdict.program.name, "outcome": verdict.outcome}
            line |= {"check": asdict(verdict.check), "verify": asdict(verdict.verify)}
            print(json.dumps(line), file=file, flush=True)
    known = known_wrong()
    wrong = {each.program.name: each for each in judged if not each.is_right}
    if record:
        names = {each.program.name for each in judged}
        others = {name: outcome for name, outcome in known.items() if name not in names}
        others |= {name: verdict.outcome for name, verdict in wrong.items()}
        WRONG.write_text("".join(f"{name}: {others[name]}\n" for name in sorted(others)))
    new = {name: each for name, each in wrong.items() if known.get(name) != each.outcome}
    for verdict in new.values():
        if not verdict.program.is_holdout:
            print(verdict.text)
    if len(judged) < len(chosen):
        print(f"stopped after {len(judged)} of {len(chosen)}")
    print_table(judged)
    if new:
        print(f"{len(new)} wrong verdicts are not listed in {WRONG.relative_to(ROOT)}")
    return int(bool(new))


def confirm(chosen: list[Program], jobs: int, save: Path | None) -> int:
    """Compare the marks with what the GPU of this machine does."""
    counts: Counter[tuple[str, str, str]] = Counter()
    wrong = 0
    # The faulty ones last: a refused capture costs a process.
    chosen = sorted(chosen, key=lambda program: program.is_faulty)
    with Path(save or os.devnull).open("w") as file:
        for program, truth in _truths_of(chosen, jobs):
            label = "faulty" if program.is_faulty else "correct"
            line = {"program": program.name, "label": label, **truth}
            print(json.dumps(line), file=file, flush=True)
            counts[program.family, label, truth["result"]] += 1
            if not agrees_with(program, truth["result"]):
                wrong += 1
                print(f"{program.name} is {label}: {truth['result']}, {truth['detail']}")
    for (family, label, result), count in sorted(counts.items()):
        print(f"{family:20}{label:9}{result:16}{count:6}")
    print(f"{wrong} of {len(chosen)} programs are not marked as the GPU behaves")
    return int(bool(wrong))


def _truths_of(chosen: list[Program], jobs: int) -> Iterator[tuple[Program, dict[str, str]]]:
    by_name = {program.name: program for program in chosen}
    groups = [chosen[start : start + GROUP] for start in range(0, len(chosen), GROUP)]
    with ThreadPoolExecutor(jobs) as pool:
        for answers in pool.map(truths, groups):
            for name, truth in answers.items():
                yield by_name[name], truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", nargs="*", metavar="FAMILY|NAME")
    parser.add_argument("--truth", action="store_true", help="compare the marks with a GPU")
    parser.add_argument("--sample", type=int, metavar="N", help="of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--holdout", action=argparse.BooleanOptionalAction, help="only, or none")
    parser.add_argument("--device", help="cuda or simulated; a GPU if there is one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=Path, help="one JSON line for each program")
    parser.add_argument("--record", action="store_true", help="keep the names of the wrong ones")
    options = parser.parse_args()
    chosen = programs(*options.wanted)
    if not chosen:
        parser.error(f"nothing in the corpus is called {', '.join(options.wanted)}")
    if options.holdout is not None:
        chosen = [program for program in chosen if program.is_holdout == options.holdout]
    if options.sample is not None and options.sample < 1:
        parser.error("--sample takes a number of programs, 1 or more")
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.truth:
        sys.exit(confirm(chosen, options.jobs, options.save))
    preload("tests.corpus.preloaded")
    sys.exit(judge(chosen, options.device, options.jobs, options.save, record=options.record))


if __name__ == "__main__":
    main()
