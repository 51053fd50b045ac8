"""The ``cgtool`` command."""

from __future__ import annotations

import sys

COMMANDS = {
    "capture": "Capture forward and backward into graphs, show and save what is in them.",
    "bench": "Time eager against replay on the GPU, with an interval on the speed-up.",
    "profile": "Say where the GPU time of a replay goes, and whether a graph helps at all.",
    "check": "Find every hazard of a capture in one run, before it fails or goes wrong silently.",
    "verify": "Prove that replays give what eager gives, or say which line they part at.",
    "dump": "Draw or print a capture: DOT, SVG, PNG, JSON, or the driver's own text.",
    "pools": "Explain the memory pools of a capture, to the byte.",
    "diff": "Say what changed between two captures: nodes, kernels, sizes, memory, times.",
    "gate": "Hold counts, memory and times to budgets and baselines: one verdict, for CI.",
    "explain": "Explain the code of a finding, with a wrong and a right example.",
    "doctor": "Say what this machine can do, and what would bring the rest.",
}


def main() -> None:
    """Run the command line. Every way out is an exit code; no traceback of ours is shown."""
    try:
        # Imported in here: Ctrl-C while a module is read must be as quiet as any other.
        from cgtool.cli.run import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
