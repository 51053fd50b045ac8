"""No command writes what it prints over the capture that it is of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cgtool.cli.app import main

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"


@pytest.mark.parametrize(
    "arguments",
    [["pools"], ["pools", "--format", "json"], ["dump"], ["dump", "--json"], ["profile"],
     ["profile", "--format", "perfetto"]],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.cgt", "./a.cgt", "link"])
def test_refused(arguments, name: str, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    before = (CAPTURES / "profile-two_streams.cgt").read_bytes()
    Path("a.cgt").write_bytes(before)
    Path("link").symlink_to("a.cgt")
    monkeypatch.setattr(sys, "argv", ["cgtool", *arguments, "a.cgt", "-o", name])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (2, "")
    assert f"-o {Path(name)} would be written over a.cgt" in err
    assert Path("a.cgt").read_bytes() == before
