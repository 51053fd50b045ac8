"""Are the verdicts right? `python benchmarks/corpus.py [THEME|NAME...] [--as-scripts] [--truth]`.

Runs `check` and `verify` over the corpus of tests/corpus and compares the answers with its labels:
guilty entries must be found at their line, innocent ones must be free of errors and warnings.
``--as-scripts`` runs the factories of the corpus as scripts that capture them by hand
(tests/corpus/as_scripts.py). ``--sample N`` draws N programs at random, by ``--seed``, in random
order: a run that is cut short is a random sample, too.
``--like-a-gpu`` calls captured code of scripts no second time, as on a GPU, also without one.
``--truth`` asks a GPU about the labels instead, with plain PyTorch and without cgtool.
``--save FILE`` keeps one JSON line for each entry; ``--record`` writes the names of the wrong ones
to tests/corpus/wrong.txt. Exit code 1 if a verdict, or a label, is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.corpus.as_scripts import as_scripts  # noqa: E402
from tests.corpus.catalog import WRONG, Entry, entries  # noqa: E402
from tests.corpus.judge import GOOD, OUTCOMES, judged  # noqa: E402
from tests.corpus.truth import GROUP, agrees_with, truths  # noqa: E402
from tests.forked_workers import preload  # noqa: E402


def print_table(rows: list[tuple[Entry, str]], outcomes: Iterable[str]) -> None:
    """Counts by theme."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry, outcome in rows:
        for theme in (entry.theme, "all"):
            counts[theme][outcome] += 1
    shown = [outcome for outcome in outcomes if counts["all"][outcome]]
    print(f"{'theme':24}" + "".join(f"{outcome:>16}" for outcome in shown))
    for theme in [*sorted(set(counts) - {"all"}), "all"]:
        print(f"{theme:24}" + "".join(f"{counts[theme][outcome]:16}" for outcome in shown))


def judge(
    chosen: list[Entry], device: str | None, jobs: int, save: Path | None, *, record: bool
) -> int:
    verdicts = []
    # As `on_gpu.py` ends a job in time: what is known by then counts.
    with Path(save or os.devnull).open("w") as file, contextlib.suppress(KeyboardInterrupt):
        for verdict in judged(chosen, device, jobs):
            verdicts.append(verdict)
            line = {"entry": verdict.entry.key, "outcome": verdict.outcome}
            line |= {"check": asdict(verdict.check), "verify": asdict(verdict.verify)}
            print(json.dumps(line), file=file, flush=True)
    wrong = [verdict for verdict in verdicts if verdict.outcome not in GOOD]
    if record:
        others = set(WRONG.read_text().split()) - {entry.key for entry in chosen}
        keys = sorted(others | {verdict.entry.key for verdict in wrong})
        WRONG.write_text("".join(f"{key}\n" for key in keys))
    for verdict in wrong:
        print(verdict.text)
    if len(verdicts) < len(chosen):
        print(f"stopped after {len(verdicts)} of {len(chosen)}")
    print_table([(verdict.entry, verdict.outcome) for verdict in verdicts], OUTCOMES)
    return int(bool(wrong))


def confirm(chosen: list[Entry], jobs: int, save: Path | None) -> int:
    """Compare the labels with what the GPU of this machine does."""
    rows, wrong = [], 0
    with Path(save or os.devnull).open("w") as file, ThreadPoolExecutor(jobs) as pool:
        # The guilty ones last: a refused capture costs a process.
        chosen = sorted(chosen, key=lambda entry: bool(entry.guilty))
        groups = [chosen[start : start + GROUP] for start in range(0, len(chosen), GROUP)]
        found = (answer for answers in pool.map(truths, groups) for answer in answers.items())
        by_key = {entry.key: entry for entry in chosen}
        for key, truth in found:
            entry = by_key[key]
            agrees = agrees_with(entry, truth["result"])
            label = "guilty" if entry.guilty else "innocent"
            print(json.dumps({"entry": entry.key, "label": label, **truth}), file=file, flush=True)
            rows.append((entry, f"{label}, {truth['result']}"))
            if not agrees:
                wrong += 1
                print(f"{entry.key} is labeled {label}: {truth['result']}, {truth['detail']}")
    print_table(rows, sorted({outcome for _entry, outcome in rows}))
    return int(bool(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", nargs="*", metavar="THEME|NAME")
    parser.add_argument("--as-scripts", action="store_true", help="factories as scripts")
    parser.add_argument("--like-a-gpu", action="store_true", help="scripts, without a GPU")
    parser.add_argument("--truth", action="store_true", help="compare the labels with a GPU")
    parser.add_argument("--sample", type=int, metavar="N", help="of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--device", help="cuda or simulated; a GPU if there is one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=Path, help="one JSON line for each entry")
    parser.add_argument("--record", action="store_true", help="keep the names of the wrong ones")
    options = parser.parse_args()
    chosen = entries(*options.wanted)
    if not chosen:
        parser.error(f"nothing in the corpus is called {', '.join(options.wanted)}")
    if options.sample is not None and options.sample < 1:
        parser.error("--sample takes a number of programs, 1 or more")
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.as_scripts and (options.truth or options.record):
        parser.error("--as-scripts keeps no names, and asks no GPU about labels")
    if options.truth:
        sys.exit(confirm(chosen, options.jobs, options.save))
    more = ["tests.corpus.like_a_gpu"] if options.like_a_gpu else []
    preload("tests.corpus.preloaded", *more)
    with tempfile.TemporaryDirectory() as folder:
        if options.as_scripts:
            chosen = [*as_scripts(chosen, Path(folder))]
        code = judge(chosen, options.device, options.jobs, options.save, record=options.record)
    sys.exit(code)


if __name__ == "__main__":
    main()
