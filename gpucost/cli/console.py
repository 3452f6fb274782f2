"""The console of results."""

from __future__ import annotations

from rich.console import Console


class ResultConsole(Console):
    """Whoever reads may have had enough (``| head``), which is no failure: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, for the command line to end on."""
        raise BrokenPipeError
