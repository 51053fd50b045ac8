"""The simulated device's predicted pools against those recorded on a GPU, for every sample.

`python benchmarks/simulated_pools.py` captures each sample on the simulated device and compares
reserved bytes with samples/captures/NAME.cgt. Prints a table; the error is stated, not judged.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cgtool.analysis.pools import pools_report
from cgtool.model.capture_file import read

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.forked_workers import run_cgtool  # noqa: E402


def totals(path: Path) -> tuple[int, int, int]:
    """(reserved, peak, nodes) of a capture, in bytes and nodes."""
    capture = read(path)
    pools = pools_report(capture).pools
    return (
        sum(pool.reserved_bytes for pool in pools),
        sum(pool.peak_bytes for pool in pools),
        sum(len(graph.nodes) for graph in capture.graphs),
    )


def main() -> None:
    print(f"{'sample':<18}{'recorded':>12}{'predicted':>12}{'error':>8}{'peak error':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for recorded in sorted((ROOT / "samples" / "captures").glob("*.cgt")):
            sample = ROOT / "samples" / f"{recorded.stem}.py"
            if not sample.exists():
                continue
            target = Path(folder) / recorded.name
            run_cgtool(
                *("capture", f"{sample}:build", "--device", "simulated", "-q", "-o", target),
                cwd=ROOT,
            ).check_returncode()
            real, real_peak, _ = totals(recorded)
            ours, our_peak, _ = totals(target)
            print(
                f"{recorded.stem:<18}{real / 2**20:>8.1f} MiB{ours / 2**20:>8.1f} MiB"
                f"{(ours - real) / real:>8.1%}{(our_peak - real_peak) / real_peak:>12.1%}"
            )


if __name__ == "__main__":
    main()
