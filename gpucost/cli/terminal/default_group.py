"""A group of commands of which one may be left out: ``compare 2026-10 2026-09`` is ``compare spans 2026-10
2026-09``. What it is asked about is never called as a command is."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultCommandGroup(TyperGroup):
    """Subclasses name the command that is meant where the first argument names none."""

    default = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)
