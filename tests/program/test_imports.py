"""The user's file is run as Python would run it, once, and its errors show its own frames."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys

import pytest
import torch

from cgtool.model.failure import CgtoolError, Failure
from cgtool.program.load import load

STEP = "def build():\n    return torch.ones(2)\n"
COUNTED = "import os\nos.environ['RAN'] = os.environ.get('RAN', '') + 'x'\n"


def step(path, name="build"):
    return load(f"{path}:{name}", device="cpu")


def failure_of(spec, **options) -> Failure:
    with pytest.raises(CgtoolError) as caught:
        load(str(spec), device="cpu", **options)
    return caught.value.failure


@pytest.fixture(autouse=True)
def _count(monkeypatch):
    monkeypatch.setenv("RAN", "")


def ran() -> int:
    return len(os.environ["RAN"])


def test_importing_cgtool_entry_prints_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import cgtool.program.load"], capture_output=True, check=True
    )
    assert done.stdout == b""
    assert done.stderr == b""


def test_spec_needs_no_torch():
    text = "import sys, cgtool.program.spec; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_name_argv_and_folder(write):
    write("value = 3", "beside.py")
    path = write(
        COUNTED
        + "import sys, beside\nseen = (__name__, list(sys.argv), beside.value)\n"
        + STEP
        + "if __name__ == '__main__':\n    raise SystemExit\n",
        "my_model.py",
    )
    workload = step(path)
    module = sys.modules["my_model"]
    assert module.seen == ("my_model", [str(path)], 3)
    assert (workload.frame.file, workload.frame.line) == (str(path), 5 + 2)
    assert ran() == 1


def test_never_run_twice(write):
    path = write(COUNTED + STEP)
    step(path)
    step(path)
    assert ran() == 1


def test_a_sibling_that_imports_it_back_gets_the_same_module(write):
    write("def other():\n    import model\n    return model.torch.ones(1)", "beside.py")
    path = write(COUNTED + "import beside\ndef build():\n    return beside.other()\n")
    step(path)
    assert ran() == 1


def test_pickle_and_dataclasses_work(write):
    path = write(
        """
        from __future__ import annotations
        import dataclasses, pickle
        import torch

        @dataclasses.dataclass
        class Config:
            width: int = 4

        def build():
            again = pickle.loads(pickle.dumps(Config(8)))
            assert again == Config(8)
            return torch.ones(again.width)
        """,
        "with-dash.py",
        bare=True,
    )
    assert step(path).kind == "step"


@pytest.mark.parametrize(
    "name",
    [
        "random.py",
        "torch.py",
        "types.py",
        "statistics.py",
        "triton.py",
        "model.v2.py",
        "2nd.py",
        "über.py",
        "模型.py",
        'it\'s "quoted".py',
        "two\nlines.py",
        "with space/a b.py",
        "colon:colon/m.py",
        "__init__.py",
        "__main__.py",
        "no_suffix",
        "class.py",
    ],
)
def test_hostile_file_names(write, name):
    path = write(COUNTED + STEP, name)
    workload = step(path)
    assert workload.kind == "step"
    assert workload.frame.file == str(path)
    assert ran() == 1
    assert sys.modules["random"] is random
    assert sys.modules["torch"] is torch


def test_a_file_named_like_an_installed_module_does_not_replace_it(write):
    sys.modules.pop("colorsys", None)
    path = write(COUNTED + STEP, "colorsys.py")
    step(path)
    import colorsys

    assert colorsys.__file__ != str(path)
    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert ran() == 1


def test_a_file_behind_a_link(write, tmp_path):
    write("value = 1", "real/beside.py")
    path = write(COUNTED + "import beside\n" + STEP, "real/model.py")
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert step(link).frame.file == str(path)
    step(path)
    assert ran() == 1


def test_a_file_in_a_package_is_its_module(write):
    write("", "pack_one/__init__.py")
    write("", "pack_one/sub/__init__.py")
    write("value = 1", "pack_one/near.py")
    write("value = 2", "pack_one/sub/script_style.py")
    path = write(
        COUNTED
        + "from ..near import value\nimport pack_one.near\nimport script_style\nOWN = __name__\n"
        + STEP,
        "pack_one/sub/model.py",
    )
    step(path)
    assert sys.modules["pack_one.sub.model"].OWN == "pack_one.sub.model"
    assert ran() == 1


def test_a_package_named_like_a_loaded_module(write):
    write("", "random/__init__.py")
    write("value = 1", "random/near.py")
    path = write(COUNTED + "from .near import value\n" + STEP, "random/model.py")
    step(path)
    assert sys.modules["random"] is random
    assert ran() == 1


def test_a_module_name(write, tmp_path, monkeypatch):
    write("", "pack_two/__init__.py")
    write(COUNTED + STEP, "pack_two/model.py")
    monkeypatch.chdir(tmp_path)
    assert step("pack_two.model").parts[0].name == "build"
    assert ran() == 1
    failure = failure_of("pack_two.modle:build")
    assert failure.exit_code == 2
    assert "no module named pack_two.modle" in failure.message


def test_a_file_given_without_its_suffix(write, tmp_path, monkeypatch):
    write(STEP, "lonely_model.py")
    monkeypatch.chdir(tmp_path)
    assert step("lonely_model").kind == "step"
    assert failure_of("no_such_module_at_all:f").exit_code == 2


def test_no_such_name(write):
    path = write(
        """
        from os.path import join
        net = nn.Linear(1, 1)
        class Model(nn.Module):
            def forward(self, x): return x
        def build(): ...
        def _own(): ...
        LIMIT = 3
        """
    )
    failure = failure_of(f"{path}:bild")
    assert failure.exit_code == 2
    assert failure.fix == "did you mean build?"
    assert failure_of(f"{path}:zzz").fix == "it has Model, build, net"
    assert failure_of(f"{path}:Model.forwrad").fix == "did you mean Model.forward?"
    assert failure_of(f"{write('x = 1', 'empty.py', bare=True)}:f").fix == (
        "it defines nothing that can be called"
    )


def test_an_exception_while_importing(write):
    path = write("def inner():\n    raise ValueError('first\\nsecond')\n\ninner()\n" + STEP)
    failure = failure_of(f"{path}:build")
    assert failure.exit_code == 4
    assert failure.phase == "load"
    assert failure.message.endswith("model.py raised ValueError: first")
    assert failure.why == "second"
    assert [(frame.file, frame.line, frame.function) for frame in failure.frames] == [
        (str(path), 4, "inner"),
        (str(path), 6, "<module>"),
    ]


def test_a_file_that_failed_leaves_no_module(write):
    path = write("raise ValueError", "fails.py")
    failure_of(f"{path}:build")
    assert "fails" not in sys.modules


def test_a_syntax_error_has_line_and_caret(write):
    path = write("def build():\n    return torch.ones(2\n")
    failure = failure_of(f"{path}:build")
    assert failure.exit_code == 4
    assert failure.frames[0].file == str(path)
    assert failure.frames[0].line == 4
    assert "SyntaxError: '(' was never closed" in failure.message
    source, caret = failure.why.splitlines()
    assert source.strip() == "return torch.ones(2"
    assert source[caret.index("^")] == "("


def test_a_syntax_error_in_a_sibling(write):
    broken = write("x = = 1", "broken_sibling.py")
    path = write("import broken_sibling\n" + STEP)
    failure = failure_of(f"{path}:build")
    assert [(frame.file, frame.line) for frame in failure.frames] == [
        (str(broken), 3),
        (str(path), 3),
    ]


@pytest.mark.parametrize("content", [b"x = '\xff'", b"\0", b"# coding: nonsense\n"])
def test_bytes_that_are_not_source_code(tmp_path, content):
    path = tmp_path / "broken.py"
    path.write_bytes(content)
    failure = failure_of(f"{path}:build")
    assert failure.exit_code == 4
    assert failure.frames[0].file == str(path)


def test_a_missing_library_says_where_to_install_it(write):
    path = write("import no_such_library_at_all\n" + STEP)
    failure = failure_of(f"{path}:build")
    assert failure.exit_code == 4
    assert sys.prefix in failure.fix
    assert failure.frames[0].line == 3


def test_exit_while_importing(write):
    failure = failure_of(f"{write('import sys' + chr(10) + 'sys.exit(3)')}:build")
    assert failure.exit_code == 4
    assert "sys.exit(3)" in failure.message
    assert "__main__" in failure.fix


def test_raising_generator_exit(write):
    failure = failure_of(f"{write('raise GeneratorExit')}:build")
    assert failure.exit_code == 4


def test_an_error_whose_message_raises(write):
    path = write("class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad")
    failure = failure_of(f"{path}:build")
    assert "raised Bad" in failure.message


def test_interrupt_passes(write):
    path = write("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        step(path)
    path = write("def build(): raise KeyboardInterrupt", "other.py")
    with pytest.raises(KeyboardInterrupt):
        step(path)


def test_a_module_whose_attribute_raises(write):
    path = write("def __getattr__(name):\n    raise RuntimeError('lazy')")
    failure = failure_of(f"{path}:build")
    assert failure.exit_code == 4
    assert failure.frames[0].line == 4


def test_frames_are_the_users_in_odd_places(write):
    path = write(
        "def build():\n    raise ValueError\n", "lib/python3.11/site-packages/torch/own.py"
    )
    failure = failure_of(f"{path}:build")
    assert [frame.file for frame in failure.frames] == [str(path)]


def test_generated_text_is_not_a_frame(write):
    path = write(
        """
        import dataclasses
        @dataclasses.dataclass
        class A:
            x: int
            def __post_init__(self): raise ValueError
        def build():
            return exec("A(1)")
        """
    )
    failure = failure_of(f"{path}:build")
    assert [frame.function for frame in failure.frames] == ["A.__post_init__", "build"]


def test_pickle_of_the_module_survives(write):
    path = write("class Box:\n    pass\n" + STEP, "random.py")
    workload = step(path)
    box = workload.parts[0].function.__globals__["Box"]()
    assert type(pickle.loads(pickle.dumps(box))) is type(box)


def test_a_file_that_was_changed_within_a_second_is_read_again(tmp_path):
    """Python's own cache takes a file of the same second and size to be the same."""
    file = tmp_path / "changing.py"
    results = []
    for number in (1, 2):
        file.write_text(f"NUMBER = {number}\n\ndef build():\n    return abs, (NUMBER,)\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        results.append(step(file).parts[0].args)
        del sys.modules["changing"]
    assert results == [(1,), (2,)]
    assert not (tmp_path / "__pycache__").exists()
