"""Two entries in one process: each with its own modules, or not at all."""

from __future__ import annotations

import sys

import pytest

from cgtool.model.failure import EXIT_USAGE, CgtoolError
from cgtool.program.import_isolation import ImportIsolation
from cgtool.program.load import import_root, load
from cgtool.program.spec import parse_entry

MODEL = """
import torch
from {helper} import WIDTH

def build(device):
    {inside}
    model = torch.nn.Linear(WIDTH, 1).to(device)
    return model, (torch.ones(2, WIDTH, device=device),)
"""


@pytest.fixture(autouse=True)
def own_modules():
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if not name.startswith("torch"):
            del sys.modules[name]


def checkout(folder, width, *, helper="layers", inside="pass", package=False):
    folder.mkdir()
    home = folder
    if package:
        home = folder / "net"
        home.mkdir()
        (home / "__init__.py").write_text("")
    (home / "layers.py").write_text(f"WIDTH = {width}\n")
    (home / "model.py").write_text(MODEL.format(helper=helper, inside=inside))
    return f"{home / 'model.py'}:build"


def widths(first, second):
    isolation = ImportIsolation(first, second)
    in_features = []
    with isolation.checked():
        for spec in (first, second, first, second):
            isolation.switch_to(spec)
            in_features.append(load(spec, device="cpu").parts[0].function.in_features)
    return in_features


def test_a_module_of_the_same_name_in_each_folder_is_refused(tmp_path):
    first, second = checkout(tmp_path / "a", 3), checkout(tmp_path / "b", 5)
    with pytest.raises(CgtoolError) as caught:
        widths(first, second)
    failure = caught.value.failure
    assert failure.exit_code == EXIT_USAGE
    assert "own module layers" in failure.message
    assert str(tmp_path / "a" / "layers.py") in failure.why
    assert "--baseline" in failure.fix


def test_an_import_inside_the_factory_is_checked_too(tmp_path):
    folder = checkout(tmp_path / "a", 3, helper="math_a", inside="import layers")
    other = checkout(tmp_path / "b", 5, helper="math_b", inside="import layers")
    for name in "ab":
        (tmp_path / name / f"math_{name}.py").write_text("WIDTH = 2\n")
    with pytest.raises(CgtoolError, match="own module layers"):
        widths(folder, other)


def test_two_names_in_one_file_share_what_it_imports(tmp_path):
    folder = checkout(tmp_path / "a", 3)
    assert widths(folder, folder.replace(":build", ":build")) == [3] * 4


def test_relative_imports_of_two_packages_of_one_name_are_their_own(tmp_path):
    folder = checkout(tmp_path / "a", 3, helper=".layers", package=True)
    other = checkout(tmp_path / "b", 5, helper=".layers", package=True)
    assert widths(folder, other) == [3, 5, 3, 5]


def test_modules_of_other_names_do_not_meet(tmp_path):
    first, second = checkout(tmp_path / "a", 3), checkout(tmp_path / "b", 5, helper="others")
    (tmp_path / "b" / "others.py").write_text("import math\nWIDTH = 5\n")
    assert widths(first, second) == [3, 5, 3, 5]


def test_the_import_statement_is_pythons_again_afterwards(tmp_path):
    before = __import__
    first, second = checkout(tmp_path / "a", 3), checkout(tmp_path / "b", 5)
    with pytest.raises(CgtoolError):
        widths(first, second)
    assert __import__ is before


def test_the_folder_of_a_package_is_the_one_above_it(tmp_path):
    spec = checkout(tmp_path / "a", 3, package=True)
    assert import_root(parse_entry(spec)) == tmp_path / "a"
