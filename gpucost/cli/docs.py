"""docs/cli.md, from the commands themselves: ``python -m gpucost.cli.docs > docs/cli.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import MEANINGS

_HEAD = """# Command line

Generated from `gpucost/cli`; a test holds this page and the code together.

Results go to stdout; progress, remarks and errors to stderr, an error as one sentence that names the field,
the value and what is allowed. A progress bar is drawn on terminals only. Files are written whole or not at
all. In a pipe the tables of `findings`, `waste` and `job` are as wide as their names, unless `COLUMNS` says
how wide. Unknown options are refused by name. Where the ledger, the prices and the source are,
[the settings](settings.md) say.

The table below is about all commands but three, whose answers have codes of their own: `advise --exit-code`
([advise.md](advise.md)), `advisor verify` and `advisor record` ([advisor-cases.md](advisor-cases.md)).

| exit code | meaning |
|---|---|
"""


def render() -> str:
    """The page, ending in one newline."""
    root: Any = typer.main.get_command(app)
    exits = "".join(f"| {code.value} | {meaning} |\n" for code, meaning in MEANINGS.items())
    return _HEAD + exits + "\n" + "\n".join(_command(root, "gpucost"))


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"## {path}\n\n{_text(command.help)}\n"
    context = typer.Context(command)
    found = [parameter.get_help_record(context) for parameter in command.params if parameter.name != "help"]
    records = [record for record in found if record is not None]  # a hidden option has none
    if records:
        rows = [f"| {_code(name)} | {_text(meaning)} |" for name, meaning in records]
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n"
    for name, sub in getattr(command, "commands", {}).items():
        yield from _command(sub, f"{path} {name}")


def _code(text: str) -> str:
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


def _text(text: str | None) -> str:
    """Paragraphs stay apart; lines inside one are joined."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


if __name__ == "__main__":
    print(render(), end="")
