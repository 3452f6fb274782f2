"""The README is followed literally by new users: its commands and links must exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from gpucost.cli.application import app

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for folder in ("docs", "alerts") for page in sorted((ROOT / folder).rglob("*.md"))),
]
BLOCKS = (ROOT / "README.md").read_text("utf-8").split("```")[1::2]
COMMANDS = re.findall(r"^ *(gpucost [^#\n]*)", "\n".join(BLOCKS), re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_readme_parse(line: str) -> None:
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    context = command.make_context("gpucost", [], resilient_parsing=True)
    while words and hasattr(command, "get_command"):
        by_default = getattr(command, "default", "")
        name = words.pop(0) if words[0] in command.commands or not by_default else by_default
        command = command.get_command(context, name)
        assert command is not None, line
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    arguments = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "argument" and parameter.required
    ]
    assert not (arguments and not words), f"{line}: lacks its argument"


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
