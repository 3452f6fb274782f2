"""What the pages of operations tell people to write, type and follow exists: settings, commands, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from gpucost.cli.application import app
from gpucost.service.settings.loader import load_settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "alerts", "helm") for page in sorted((ROOT / folder).rglob("*.md"))),
]
OF_SETTINGS = ("access.md", "several-clusters.md", "operations.md", "webhook.md")
OF_COMMANDS = ("access.md", "cli-remote.md", "operations.md", "backup.md", "install.md", "api.md", "mcp.md")
_FENCE = re.compile(r"^```(?:yaml|yaml settings)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(gpucost [^`\n]+)`")
_LINE = re.compile(r"^(?:    )?(?:\$ |\w+=\$\()?(?:.*-- )?(gpucost(?: |$)[^#)\n]*)", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$|(?:^    .*\n)+", re.MULTILINE | re.DOTALL)


def settings_of(name: str) -> list[str]:
    return _FENCE.findall((DOCS / name).read_text("utf-8"))


EXAMPLES = [(name, n) for name in OF_SETTINGS for n in range(len(settings_of(name)))]


@pytest.mark.parametrize(("name", "n"), EXAMPLES, ids=lambda part: str(part))
def test_settings_of_the_page_load(
    name: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that they name are there: the loader looks."""
    text = settings_of(name)[n]
    monkeypatch.chdir(tmp_path)
    for path in set(re.findall(r"_file: (/\S+)", text)):
        (tmp_path / Path(path).name).write_text("0" * 64, encoding="utf-8")
        text = text.replace(path, str(tmp_path / Path(path).name))
    (tmp_path / "settings.yaml").write_text(text, encoding="utf-8")
    load_settings(tmp_path / "settings.yaml")


def commands_of(name: str) -> list[str]:
    """In blocks and in the text; ``…`` and what comes after may be anything."""
    text = (DOCS / name).read_text("utf-8")
    blocks = _BLOCK.findall(text)
    found = [line for block in blocks for line in _LINE.findall(block)]
    return [each.partition("…")[0] for each in (*found, *_SPAN.findall(_BLOCK.sub("", text)))]


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_commands_of_the_page_exist(name: str) -> None:
    lines = commands_of(name)
    assert lines
    for line in lines:
        _check(line)


def _check(line: str) -> None:
    """Every word that must be a command is one, and takes the options."""
    command = typer.main.get_command(app)
    context = command.make_context("gpucost", [], resilient_parsing=True)
    words = shlex.split(line)[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    while words and hasattr(command, "get_command"):
        word = words.pop(0)
        if word.startswith("--"):
            assert word in known, line
            words = words[1:]
        elif word != "COMMAND":
            command = command.get_command(context, word)
            assert command is not None, line
            known |= {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-") and word != "-"} <= known, line


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_parts_that_exist() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path}#{anchor}"
        for page in PAGES
        for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text("utf-8"))
        if (target := page.parent / path if path else page).suffix == ".md"
        and (not target.exists() or anchor not in anchors(target))
    ]
    assert missing == []
