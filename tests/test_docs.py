"""What the documentation says is there."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import typer

from cgtool.cli.app import COMMANDS, app
from cgtool.model import capture

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "samples" / "README.md"]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_field_of_a_capture_is_described():
    text = (ROOT / "docs" / "capture-format.md").read_text()
    structs = [
        one
        for one in vars(capture).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one is not msgspec.Struct
    ]
    for one in structs:
        if one is capture.Capture:
            continue
        section = text.partition(f"## {one.__name__}\n")[2].partition("\n## ")[0]
        for field in one.__struct_fields__:
            assert f"`{field}`" in section, f"{one.__name__}.{field}"


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
        assert re.search(rf"^{name}==", pins, re.M), name


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
        for one in parameters
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("--") and name != "--help"
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_in_the_section_of_its_command(command):
    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section_of(command)))
    assert documented == options_of(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_defaults_are_the_true_ones(command):
    row = re.compile(r"^\| (?:`-\w`, )?`(--[\w-]+)[^|]*\| ([^|]*) \| ", re.M)
    documented = dict(row.findall(section_of(command)))
    for one in typer.main.get_command(app).get_command(None, command).params:
        default = getattr(one.default, "value", one.default)
        name = max(one.opts, key=len)
        if name in documented and default is not None and not isinstance(default, bool):
            true = f"{default:g}" if isinstance(default, float) else str(default)
            assert documented[name].strip("`") == true, name
