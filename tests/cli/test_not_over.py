"""No command writes what it prints over what it is of, or measures what it cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"


@pytest.mark.parametrize(
    "arguments",
    [["pools"], ["pools", "--format", "json"], ["dump"], ["dump", "--json"], ["profile"],
     ["profile", "--format", "perfetto"]],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.cgt", "./a.cgt", "link"])
def test_refused(arguments, name: str, tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    before = (CAPTURES / "profile-two_streams.cgt").read_bytes()
    Path("a.cgt").write_bytes(before)
    Path("link").symlink_to("a.cgt")
    code, out, err = cgtool(*arguments, "a.cgt", "-o", name)
    assert (code, out) == (2, "")
    assert f"-o {Path(name)} would overwrite a.cgt" in err
    assert Path("a.cgt").read_bytes() == before


RUN = CAPTURES.parent.parent / "tests/gold/html/engine.cgt"


def test_what_was_recorded_is_not_written_over(tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.cgt").write_bytes(RUN.read_bytes())
    code, out, err = cgtool("run", "a.cgt", "-o", "a.cgt")
    assert (code, out) == (2, "")
    assert "-o a.cgt would overwrite a.cgt" in err
    assert Path("a.cgt").read_bytes() == RUN.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [["pools"], ["dump"], ["dump", "--json"], ["profile"], ["profile", "--format", "csv"],
     ["run"], ["gate", "--max-nodes", "900"]],
)  # fmt: skip
def test_a_dash_is_standard_output(arguments, tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    command, *options = arguments
    saved = RUN if command == "run" else CAPTURES / "profile-two_streams.cgt"
    expected = cgtool(command, saved, *options)
    assert cgtool(command, saved, *options, "-o", "-") == expected
    assert expected[1] and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["capture", "-o", "-", "model.py:build"], ["run", "-o", "-", "model.py"],
     ["report", "-o", "-", CAPTURES / "mlp.cgt"]],
)  # fmt: skip
def test_no_file_is_named_dash(arguments, tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(CODE)
    code, out, err = cgtool(*arguments)
    assert (code, out) == (2, "")
    assert "`-o -`: this result cannot go to standard output" in err


CODE = (
    "import torch\n\ndef build(device):\n    return torch.relu, (torch.zeros(2, device=device),)\n"
)


@pytest.mark.parametrize(
    "arguments",
    [["capture"], ["check"], ["verify"], ["dump"], ["pools"], ["profile"], ["bench"],
     ["diff", "a.cgt"], ["gate", "--max-nodes", "9", "--format", "json"]],
)  # fmt: skip
def test_an_entry_is_not_written_over(arguments, tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.cgt").write_bytes((CAPTURES / "mlp.cgt").read_bytes())
    Path("model.py").write_text(CODE)
    given = [*arguments, "model.py:build", "-o", "./model.py"]
    code, out, err = cgtool(*given)
    assert (code, out) == (2, "")
    assert "would overwrite" in err
    assert Path("model.py").read_text() == CODE


def test_what_is_saved_is_not_written_over_an_entry(tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(CODE)
    for command in ("profile", "bench"):
        given = [command, "model.py:build", "--save", "model.py"]
        code, _, err = cgtool(*given)
        assert code == 2
        assert "--save model.py would overwrite model.py" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "--save", "new.cgt", "-o", "./new.cgt"],
        ["profile", "--save", "new.cgt", "-o", "new.cgt"],
        ["profile", "-o", "model-build-profile.cgt"],
    ],
)
def test_what_is_printed_is_not_written_over_what_is_saved(
    arguments, tmp_path: Path, monkeypatch, cgtool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(CODE)
    command, *options = arguments
    code, out, err = cgtool(command, "model.py:build", *options)
    assert (code, out) == (2, "")
    assert "would overwrite the capture that is saved there" in err
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_bench_does_not_print_over_its_baseline(tmp_path: Path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    before = (CAPTURES / "mlp-bench.cgt").read_bytes()
    Path("base.cgt").write_bytes(before)
    given = ["bench", "samples/mlp.py:build", "--baseline", "base.cgt", "-o", "base.cgt"]
    code, _, err = cgtool(*given)
    assert (code, Path("base.cgt").read_bytes()) == (2, before)
    assert "would overwrite base.cgt" in err


@pytest.mark.parametrize("command", ["capture", "check", "verify", "bench", "profile"])
def test_a_missing_folder_is_reported_before_anything_runs(
    command: str, tmp_path: Path, monkeypatch, cgtool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("raise SystemExit('it has run')\n")
    code, out, err = cgtool(command, "model.py:build", "-o", "no/x")
    assert (code, out) == (2, "")
    assert "cannot write no/x: there is no folder no\n  fix: mkdir -p no" in err
    code, out, err = cgtool(command, "model.py:build", "-o", "model.py/x")
    assert (code, out) == (2, "")
    assert f"{tmp_path / 'model.py'} is a file, not a folder" in " ".join(err.split())


@pytest.mark.parametrize(
    "arguments",
    [["dump"], ["pools"], ["profile"], ["diff", "model.py"], ["gate", "--max-nodes", "9"]],
)
def test_a_file_without_a_name_is_not_a_capture(arguments, tmp_path, monkeypatch, cgtool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(CODE)
    code, out, err = cgtool(*arguments, "model.py")
    assert (code, out) == (2, "")
    assert "names a function or a module in it" in err
    assert err.endswith("fix: write model.py:build\n")
