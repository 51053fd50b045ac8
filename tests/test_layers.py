"""The drawing in docs/architecture.md is the code: layers, and a CLI process without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "samples" / "captures" / "mlp.cgt"
SOURCE = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.glob("cgtool/**/*.py")
}

READERS = {
    "cgtool/observe/source.py": "shows a line, and finds the one that decides a branch",
    "cgtool/observe/script/blocks.py": "compiles a captured block",
}
"""The files that parse the user's source, at most three: it shows a line or runs a block again, and
decides no verdict."""


def test_layer_contract_holds():
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout


def test_few_files_parse_source():
    imports = re.compile(r"^\s*(import ast\b|from ast import)", re.MULTILINE)
    assert len(READERS) <= 3
    assert {file for file, text in SOURCE.items() if imports.search(text)} <= set(READERS)


def test_nothing_traces_lines():
    assert [file for file, text in SOURCE.items() if "settrace" in text] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["dump", str(CAPTURE), "--dot"],
        ["dump", str(CAPTURE), "--json"],
        ["dump", str(CAPTURE), "--svg"],
        ["dump", str(CAPTURE), "--raw"],
        ["pools", str(CAPTURE)],
        ["report", str(CAPTURE), "-o", "/dev/null"],
        ["doctor"],
    ],
    ids=lambda arguments: " ".join(
        argument for argument in arguments if not argument.endswith(".cgt")
    ),
)
def test_the_command_line_process_imports_no_torch(arguments):
    script = (
        "import sys\n"
        "from cgtool.cli.app import main\n"
        f"sys.argv = ['cgtool', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    code = done.code or 0\n"
        "else:\n    code = 0\n"
        "heavy = {'torch', 'numpy', 'cuda'} & set(sys.modules)\n"
        "sys.stderr.write(f'heavy={sorted(heavy)} code={code}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.endswith("heavy=[] code=0"), done.stderr
