"""The programs of `benchmarks/field` say what is true, and findings are compared with that."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.field import PROGRAMS, Outcome, judge, read_program

TRUE = {"code": "unsynchronized-io", "file": "pkg/graphs.py", "function": "load"}


def finding(code: str, severity: str, function: str) -> dict[str, object]:
    frames = [["/env/pkg/graphs.py", 7, f"Loader.{function}"], ["/program.py", 3, "<module>"]]
    return {"code": code, "severity": severity, "frames": frames, "file": "/program.py", "line": 3}


def test_every_program_pins_its_package_and_is_short() -> None:
    programs = [read_program(path) for path in PROGRAMS.glob("*_*.py")]
    assert programs
    for program in programs:
        assert len(program.path.read_text().splitlines()) <= 80
        if program.package != "torch":
            assert any(each.endswith(f"=={program.version}") for each in program.requirements)


def test_a_finding_is_true_by_its_code_and_a_frame() -> None:
    program = replace(read_program(PROGRAMS / "nemo_callback.py"), true=(TRUE,))
    outcome = Outcome("", "", "", missing=[TRUE])
    judge(program, outcome, [finding("unsynchronized-io", "error", "store")])
    assert (len(outcome.false), outcome.missing, outcome.ok) == (1, [TRUE], False)
    outcome = Outcome("", "", "", missing=[TRUE])
    found = finding("unsynchronized-io", "error", "load")
    judge(program, outcome, [found, finding("sync-item", "note", "load")])
    assert (len(outcome.found), outcome.false, outcome.ok) == (1, [], True)
