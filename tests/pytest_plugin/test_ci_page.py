"""docs/ci.md: its workflows are YAML that GitHub takes, and their commands do what it says."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from cgtool.analysis.gate.metrics import METRICS
from cgtool.pytest_plugin.graph import Graph
from tests.forked_workers import in_fork, run_cgtool

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text()
BLOCKS = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
WORKFLOWS = {"counts.yml": "counts", "times.yml": "times"}


def job_of(workflow):
    return yaml.safe_load(BLOCKS[workflow])["jobs"][WORKFLOWS[workflow]]


def commands(workflow):
    """What its steps run, but for the installation: by name."""
    steps = {step.get("name"): step["run"] for step in job_of(workflow)["steps"] if "run" in step}
    steps.pop("Install")
    return steps


STAND_IN = """\
#!/usr/bin/env bash
# Has the test run this command in a fork of a process that has imported PyTorch.
calls=$(dirname "$0")
call=$(mktemp -d "$calls/call.XXXXXX")
touch "$call/out" "$call/err"
mkfifo "$call/code"
printf '%s\\0' "${0##*/}" "$@" > "$call/command"
env -0 > "$call/environment"
pwd > "$call/folder"
echo "$call" > "$calls/requests"
read -r code < "$call/code"
cat "$call/out"
cat "$call/err" >&2
exit "$code"
"""


def run_pytest(arguments, folder, environment, out):
    """``pytest ARGUMENTS``, its output in a file; the exit code."""
    with Path(out).open("w") as file, contextlib.redirect_stdout(file):
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return int(pytest.main(arguments))


def answer(call):
    name, *arguments = (call / "command").read_text().split("\0")[:-1]
    variables = (call / "environment").read_text().split("\0")[:-1]
    environment = dict(variable.split("=", 1) for variable in variables)
    folder = (call / "folder").read_text().rstrip("\n")
    if name == "pytest":
        out = str(call / "out")
        code = in_fork(run_pytest, arguments, folder, environment, out, timeout=300)
    else:
        done = run_cgtool(*arguments, cwd=folder, env=environment)
        (call / "out").write_text(done.stdout)
        (call / "err").write_text(done.stderr)
        code = done.returncode
    (call / "code").write_text(f"{code}\n")


@pytest.fixture(scope="module")
def commands_in_forks(tmp_path_factory):
    """A folder of commands that run in forks; nothing else is different for a step."""
    folder = tmp_path_factory.mktemp("commands")
    for name in ("cgtool", "pytest"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    os.mkfifo(folder / "requests")

    def serve():
        while (call := requests.readline().rstrip("\n")) != "end":
            answer(Path(call))

    # Open for writing, too: the pipe does not end with the command that wrote to it.
    with os.fdopen(os.open(folder / "requests", os.O_RDWR)) as requests:
        thread = threading.Thread(target=serve)
        thread.start()
        yield folder
        (folder / "requests").write_text("end\n")
        thread.join()


@pytest.fixture
def project(tmp_path):
    """The files of the page, in a folder of their own."""
    for name, text in BLOCKS.items():
        if name.endswith((".py", ".toml")):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return tmp_path


def run(project, script, *folders):
    """As GitHub runs a step with ``shell: bash``; ``folders`` come first in its PATH."""
    places = [*map(str, folders), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PATH": os.pathsep.join(places),
        "GITHUB_STEP_SUMMARY": str(project / "summary.md"),
        "GITHUB_WORKSPACE": str(project),
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_documents_every_option_and_all_of_a_graph(request):
    known = {var for var in vars(request.config.option) if var.startswith("cudagraph_")}
    documented_options = {
        match.replace("-", "_") for match in re.findall(r"--(cudagraph-[a-z-]+)", PAGE)
    }
    assert documented_options == known
    table = PAGE.partition("| attribute of `graph` | meaning |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`(\w+)[(`]", table))
    figures = {metric.name.replace("-", "_") for metric in METRICS if metric.counted is not None}
    assert documented & figures
    others = {name for name in vars(Graph) if name[0] != "_"} - {"entry"} | {"capture"}
    assert documented - figures == others
    parameters = inspect.signature(Graph.gate).parameters
    assert f"max_runs={parameters['max_runs'].default}" in table
    assert f"max_seconds={parameters['max_seconds'].default:g}" in table


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_is_one_that_github_takes(workflow):
    parsed = yaml.safe_load(BLOCKS[workflow])
    # YAML 1.1 reads `on` as true, and GitHub does not.
    assert set(parsed) <= {"name", True, "permissions", "concurrency", "jobs"}
    assert set(parsed[True]) == {"push", "pull_request"}
    job = job_of(workflow)
    assert job["runs-on"] and job["timeout-minutes"]
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert set(step) <= {"name", "if", "run", "uses", "with"}
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
    for script in commands(workflow).values():
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


def test_without_a_gpu_what_is_recorded_holds_until_the_graph_grows(project, commands_in_forks):
    recorded = run(
        project,
        BLOCKS["record-simulated"].replace("gate ", "gate --device simulated "),
        commands_in_forks,
    )
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert (project / "baselines" / "build.simulated.json").is_file()
    steps = commands("counts.yml")
    said = {}
    for name, script in steps.items():
        done = run(project, script, commands_in_forks)
        assert done.returncode == 0, name + done.stdout + done.stderr
        said[name] = done.stdout
    assert "2 passed, 1 skipped" in said["Tests"]
    assert ET.parse(project / "results" / "gate.xml").getroot().get("failures") == "0"
    assert ET.parse(project / "results" / "pytest.xml").getroot().find("testsuite") is not None

    model = project / "model.py"
    model.write_text(model.read_text().replace("nn.GELU(), ", "nn.GELU(), nn.Tanh(), "))
    # Once as a user's machine does. In a fork, the line of a module without code of the user's is
    # one of the test's.
    failed = run(project, steps["Gate"])
    assert failed.returncode == 1
    assert "::error file=model.py,line=" in failed.stdout
    assert "tanh" in (project / "summary.md").read_text()
    assert ET.parse(project / "results" / "gate.xml").getroot().get("failures") != "0"
    failed = run(project, steps["Tests"], commands_in_forks)
    assert failed.returncode == 1 and "tanh" in failed.stdout


def test_an_engine_that_captures_while_it_serves_fails(tmp_path, commands_in_forks):
    engine = tmp_path / "serve.py"
    engine.write_text(BLOCKS["serve.py"])
    script = BLOCKS["serve"].replace("run -o", "run --device simulated -o")
    done = run(tmp_path, script, commands_in_forks)
    assert done.returncode == 0, done.stderr
    assert "error[" not in done.stderr
    engine.write_text(engine.read_text().replace("in (1, 4, 2)", "in (1, 4, 3)"))
    done = run(tmp_path, script, commands_in_forks)
    assert done.returncode == 1
    assert "1 at serve.py:12, called at serve.py:18" in done.stdout


@pytest.mark.gpu
def test_with_a_gpu_times_are_recorded_and_judged(project):
    recorded = run(project, BLOCKS["record-gpu"])
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    (kept,) = project.glob("tests/__cudagraphs__/test_model/test_replay*.json")
    assert '"samples"' in kept.read_text()
    for name, script in commands("times.yml").items():
        done = run(project, script)
        # Whether a time is decided is chance; that nothing got worse is not.
        fine = (0, 5) if name == "Gate" else (0,)
        assert done.returncode in fine, name + done.stdout + done.stderr
    assert (project / "results" / "benchmark.json").is_file()
