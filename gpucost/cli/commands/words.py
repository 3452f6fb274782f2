"""gpucost explain-term: what a word means, and what others call it."""

from __future__ import annotations

from typing import Annotated

import typer

from gpucost.cli.terminal.output import stdout
from gpucost.domain.errors import InputError


def explain_term(
    term: Annotated[
        str, typer.Argument(metavar="TERM", help="A word of a report or a page, or what others call it.")
    ],
) -> None:
    """What a word of gpucost means, and what Kubernetes, Kueue, Volcano, NVIDIA or FinOps call it."""
    from rich.text import Text

    from gpucost.reports.base.display import visible
    from gpucost.reports.base.glossary import docs_folder, explained_by, glossary_entries, near_words
    from gpucost.reports.render.terminal_parts import print_parts

    entries = glossary_entries((docs_folder() / "glossary.md").read_text("utf-8"))
    found = explained_by(entries, term)
    if not found:
        known = ", ".join(near_words(entries, term))
        raise InputError("TERM", visible(term), f"a word of docs/glossary.md: {known}")
    for each in found:
        elsewhere = f"\n  elsewhere: {each.elsewhere}" if each.elsewhere else ""
        print_parts(
            [Text.assemble((each.title, "bold"), f": {each.meaning}", (elsewhere, "dim"))], stdout(), gap=0
        )
