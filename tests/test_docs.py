"""The documentation agrees with the code: links, options, tables, outputs."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.dom.minidom import parseString

import pytest
import typer
from rich.console import Console

from cgtool.analysis.gate.metrics import METRICS
from cgtool.analysis.graph.fold import fit
from cgtool.analysis.graph.summary import summarize
from cgtool.analysis.graph.view import whole
from cgtool.analysis.timing.profile import profile_report
from cgtool.cli.app import COMMANDS, app
from cgtool.model.capture_file import read
from cgtool.model.options import capture_options
from cgtool.render import dot, profile_table, summary_table
from tests.forked_workers import run_cgtool
from tests.recorded import recorded

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CAPTURES = ROOT / "samples" / "captures"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "samples" / "README.md"]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))


def test_the_words_of_the_architecture_are_classes():
    words = re.findall(r"^\| [\w ]+ \| `(cgtool\.\S+)` \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert words
    assert [word for word in words if not isinstance(pkgutil.resolve_name(word), type)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert f"cgtool {command}" in text


def test_ci_runs_the_readmes_two_commands():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh readme-command\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 2
    assert "cgtool capture samples/" in blocks[0]
    assert "pytest" in blocks[1]


def test_constraints_name_what_the_project_depends_on():
    pins = (ROOT / "constraints.txt").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'^\s*"([a-z-]+)>=', project, re.M)
    for name in names:
        assert re.search(rf"^{name}==", pins, re.M | re.I), name


def test_layers_in_the_drawing_are_those_of_the_contract():
    project = (ROOT / "pyproject.toml").read_text()
    contract = project.partition("layers = [")[2].partition("]")[0]
    layers = re.findall(r"cgtool\.(\w+)", contract)
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| layer |")[2]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.M)
    drawn = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert drawn == layers


def section_of(command):
    text = (ROOT / "docs" / "cli.md").read_text()
    return text.partition(f"\n## `{command}`\n")[2].partition("\n## ")[0]


def options_of(command):
    group = typer.main.get_command(app)
    parameters = group.get_command(None, command).params
    return {
        name
        for parameter in parameters
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and name != "--help"
    }


def capture_options_table():
    rows = []
    for option in capture_options():
        value = f" {option.metavar or 'N'}" if option.default in ((), None) else ""
        flags = f"`{option.flag}{value}`"
        if option.choices:
            flags = " or ".join(f"`{option.flag} {choice}`" for choice in option.choices[:1])
            flags += "".join(f" or `{choice}`" for choice in option.choices[1:])
        elif option.default is True:
            flags = f"`{option.flag}`, `--no-{option.flag.removeprefix('--')}`"
        default = {True: "on", False: "off", None: "", (): ""}.get(option.default)
        default = f"`{option.default}`" if default is None else default
        rows.append(f"| {flags} | {default} | {option.help} |\n".replace("|  |", "| |"))
    return "| option | default | means |\n|---|---|---|\n" + "".join(rows)


def test_the_table_of_capture_options_is_derived():
    check_derived("docs/cli.md", "capture-options", capture_options_table())


def metrics_table():
    rows = []
    for metric in METRICS:
        budgets = " ".join(f"`--{bound}-{metric.name}`" for bound in metric.bounds)
        compared = "yes" if metric.watched else "when named"
        simulated = "yes" if metric.simulated else "no"
        rows.append(
            f"| `{metric.name}` | {metric.means} | {budgets} | {compared} | {simulated} |\n"
        )
    head = "| metric | is | budget | compared with a baseline | on the simulated device |\n"
    return head + "|---|---|---|---|---|\n" + "".join(rows)


def test_the_table_of_metrics_is_derived():
    check_derived("docs/cli.md", "metrics", metrics_table())


def check_derived(page, name, text):
    """The part of a page between ``<!-- NAME: ... -->`` and ``<!-- end -->``."""
    path = ROOT / page
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    derived = f"\n{text}\n"
    if os.environ.get("UPDATE_GOLD"):
        written = pattern.sub(lambda match: match[1] + derived + match[3], path.read_text())
        path.write_text(written)
    (match,) = pattern.finditer(path.read_text())
    assert match[2] == derived


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_section_of_its_command(command):
    section = section_of(command)
    if "[capture options](#capture-options)" in section:
        section += capture_options_table().replace(
            "`--pool", "`--capture-pool" if command == "pools" else "`--pool"
        )
    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section))
    assert documented == options_of(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_defaults_are_the_true_ones(command):
    row = re.compile(r"^\| (?:`-\w`, )?`(--[\w-]+)[^|]*\| ([^|]*) \| ", re.M)
    documented = dict(row.findall(section_of(command)))
    for param in typer.main.get_command(app).get_command(None, command).params:
        default = getattr(param.default, "value", param.default)
        name = max(param.opts, key=len)
        if name in documented and default is not None and not isinstance(default, bool):
            true = f"{default:g}" if isinstance(default, float) else str(default)
            assert documented[name].strip("`") == true, name


def shown_after(page, command, printed=None):
    """The lines that a page shows under a command. ``UPDATE_GOLD`` writes what is ``printed``."""
    before, marker, rest = (ROOT / page).read_text().partition(f"\n$ {command}\n")
    block, fence, after = rest.partition("\n```\n")
    assert block, command
    if printed is not None and os.environ.get("UPDATE_GOLD"):
        block = "\n".join(printed)
        (ROOT / page).write_text(before + marker + block + fence + after)
    return block.splitlines()


def printed_by(*arguments, cwd=ROOT, columns=80):
    """Both outputs of cgtool, spaces at the ends of lines left out."""
    done = subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


def test_the_readme_shows_what_capture_prints_on_that_gpu():
    text = summary_table.render(summarize(read(CAPTURES / "transformer.cgt")))
    buffer = StringIO()
    Console(file=buffer, width=80, color_system=None, highlight=False).print(text)
    printed = [line.rstrip() for line in buffer.getvalue().splitlines()]
    printed.append("saved transformer-build.cgt")
    assert (
        shown_after("README.md", "cgtool capture samples/transformer.py:build", printed) == printed
    )


def test_the_readme_shows_what_a_refused_capture_says(tmp_path):
    command = "cgtool capture model.py:f --input 'x=float32[4]' --device simulated"
    source = "import torch\n\ndef f(x):\n    return x / x.max().item()\n"
    (tmp_path / "model.py").write_text(source)
    printed = printed_by(*shlex.split(command)[1:], cwd=tmp_path)
    lines = [line.replace(str(tmp_path.resolve()), "/home/me") for line in printed]
    assert shown_after("README.md", command, lines) == lines


def test_docs_show_what_pools_prints():
    command = "cgtool pools samples/captures/transformer.cgt --holders 5"
    printed = printed_by(*command.split()[1:])
    assert shown_after("docs/cli.md", command, printed) == printed


def test_docs_show_what_profile_prints_on_that_gpu(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = profile_table.render(profile_report(recorded("profile-train_step")))
    buffer = StringIO()
    Console(file=buffer, width=80, color_system=None, highlight=False).print(text)
    printed = [line.rstrip() for line in buffer.getvalue().splitlines()]
    command = "cgtool profile samples/train_step.py:build"
    count = len(shown_after("docs/cli.md", command))
    *shown, more = shown_after("docs/cli.md", command, [*printed[: count - 1], "..."])
    assert more == "..."
    assert shown == printed[: len(shown)]


@pytest.mark.parametrize(
    ("page", "name", "options", "color"),
    [
        ("README.md", "two_streams", " --color stream --svg", "stream"),
        ("docs/cli.md", "transformer", "", "type"),
    ],
)
def test_a_picture_is_what_dump_draws(page, name, options, color):
    """Words, tooltips and colors: where a layout program puts them is its own affair."""

    def words_and_colors(svg):
        document = parseString(svg)
        words = [element.firstChild.data for element in document.getElementsByTagName("text")]
        links = document.getElementsByTagName("a")
        tooltips = [element.getAttribute("xlink:title") for element in links]
        paths = document.getElementsByTagName("path")
        return words, tooltips, {element.getAttribute("fill") for element in paths}

    command = f"cgtool dump samples/captures/{name}.cgt{options} -o {name}.svg"
    assert f"`{command}`" in (ROOT / page).read_text()
    capture = read(CAPTURES / f"{name}.cgt")
    views, note = fit(capture, [whole(at, graph) for at, graph in enumerate(capture.graphs)])
    text = dot.render(capture, views, color=color, note=note)
    kept = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    assert words_and_colors(dot.lay_out(text, "svg")) == words_and_colors(kept)


ENTRIES = ROOT / "docs" / "entries.md"


def test_code_in_the_page_on_entries_is_that_of_the_samples():
    blocks = re.findall(r"^```python from=(\S+)\n(.*?)^```", ENTRIES.read_text(), re.M | re.S)
    assert len(blocks) == 4
    for file, block in blocks:
        assert block.strip() in (ROOT / file).read_text(), file


@pytest.mark.parametrize("script", ["train", "generate"])
def test_a_script_of_the_page_on_entries_runs(script):
    folder = ROOT / "samples" / "from_script"
    limit = ["--epochs=1"] if script == "train" else ["--tokens=4"]
    command = [sys.executable, str(folder / f"{script}.py"), "--device=cpu", *limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["train", "generate"])
@pytest.mark.parametrize("command", ["check", "verify"])
def test_an_entry_of_the_page_on_entries_holds(command, script):
    entry = f"samples/from_script/{script}_entry.py:build"
    done = run_cgtool(command, entry, "--device", "simulated", "--format", "json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"] == []


@pytest.mark.parametrize(
    ("change", "missing", "code"),
    [
        ("lr=rate", "lr=1e-3", "lr-frozen-despite-capturable"),
        (", capturable=True", "", "optimizer-not-capturable"),
        ("return loss", "return loss.item()", "sync-item"),
    ],
)
def test_a_finding_reports_each_change_of_the_page_on_entries(tmp_path, change, missing, code):
    shutil.copytree(ROOT / "samples" / "from_script", tmp_path, dirs_exist_ok=True)
    file = tmp_path / "train_entry.py"
    file.write_text(file.read_text().replace(change, missing))
    changes = ENTRIES.read_text().partition("The changes, each")[2].partition("\n\n\n")[0]
    assert f"[{code}]" in changes
    done = run_cgtool(
        "check", f"{file}:build", "--device", "simulated", "--format", "json", cwd=ROOT
    )
    assert code in [finding["code"] for finding in json.loads(done.stdout)["findings"]]


DEBUG, ENGINES = ROOT / "docs" / "debug.md", ROOT / "docs" / "engines.md"
BUGS = {
    "engine": ("self.length += 1", "self.length += torch.arange(4, device='cuda') < 3"),
    "experts": ("if len(x) > 16:", "if True:"),
    "router": ("lengths[:, None]", "lengths.clamp(min=1)[:, None]"),
}
"""What is wrong, and right, in the programs of the page on debugging."""


@pytest.mark.parametrize(("page", "programs"), [(DEBUG, 3), (ENGINES, 1)])
def test_code_in_a_page_on_bugs_is_that_of_the_samples(page, programs):
    blocks = re.findall(r"^```python from=(\S+)\n(.*?)^```", page.read_text(), re.M | re.S)
    assert len(blocks) == programs
    for file, block in blocks:
        assert block == (ROOT / file).read_text(), file


@pytest.mark.parametrize("name", BUGS)
def test_what_the_page_on_debugging_finds(name, tmp_path):
    wrong, right = BUGS[name]
    source = (ROOT / "samples" / "bugs" / f"{name}.py").read_text()
    assert source.count(wrong) == 1
    code = {"engine": "node-faults", "experts": "stream-race-in-capture", "router": "first-nan"}[
        name
    ]
    for text, expected in ((source, [code]), (source.replace(wrong, right), [])):
        (tmp_path / f"{name}.py").write_text(text)
        command = ["debug", f"{name}.py:build", "--orders", "20"]
        if name == "engine":
            command = ["run", "--step", "--quiet"]
        command += ["--device", "simulated", "--format", "json"]
        command += [f"{name}.py"] if name == "engine" else []
        done = run_cgtool(*command, cwd=tmp_path, timeout=300)
        findings = json.loads(done.stdout[done.stdout.index("{") :])["findings"]
        assert [each["code"] for each in findings] == expected, done.stderr
        if expected:
            line = findings[0].get("line") or findings[0]["frames"][0][1]
            assert f"{name}.py:{line} in" in DEBUG.read_text()


def timeless(lines):
    """Words of the lines, without how long it took, and what Python 3.11 cannot record."""
    left_out = "^$"
    if sys.version_info < (3, 12):
        left_out += "|^Eager|^code |ran eagerly|batch > 32"
    words = (" ".join(line.replace("─", "").split()) for line in lines)
    lines = [re.sub(r"[\d.,]+ (ns|us|ms|s)\b", "TIME", line) for line in words]
    return [line for line in lines if not re.search(left_out, line)]


def test_the_page_on_engines_shows_what_the_commands_print(tmp_path):
    server, wrong = tmp_path / "server.py", (ROOT / "samples" / "bugs" / "server.py").read_text()
    right = wrong.replace(", assign=True", "").replace("SIZES[:4]", "SIZES")
    server.write_text(wrong)
    *commands, last = re.findall(r"^\$ (cgtool .*)$", ENGINES.read_text(), re.M)
    assert [each.split()[1] for each in commands] == ["run", "gate", "pools"]
    for command in [*commands, last]:
        if command == last:
            server.write_text(right)
        lines = printed_by(*command.split()[1:], cwd=tmp_path, columns=100)
        assert timeless(shown_after("docs/engines.md", command, lines)) == timeless(lines)
    gate = run_cgtool(*commands[1].split()[1:], cwd=tmp_path)
    assert gate.returncode == 0, gate.stdout
