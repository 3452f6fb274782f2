"""Exit codes, and errors as one sentence on stderr."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum

import typer
from typer.exceptions import TyperException

from gpucost.domain.errors import ConfigError, GpuCostError, InputError, LedgerError, SourceError


class Exit(IntEnum):
    """docs/cli.md and ``gpucost --help`` list these."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    SOURCE = 3
    LEDGER = 4
    VERIFICATION = 5


MEANINGS = {
    Exit.OK: "done",
    Exit.UNEXPECTED: "an error of gpucost itself",
    Exit.USAGE: "wrong usage, input or settings; the message names field, value and what is allowed",
    Exit.SOURCE: "the source could not answer; windows stay open, the same command may be run again",
    Exit.LEDGER: "the ledger refused (month closed, conflict) or cannot be reached",
    Exit.VERIFICATION: "verification failed: totals do not add up, or the ledger was changed behind its back",
}
EPILOG = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."

_CODES: tuple[tuple[type[GpuCostError], Exit], ...] = (
    (InputError, Exit.USAGE),
    (SourceError, Exit.SOURCE),
    (LedgerError, Exit.LEDGER),
)
_GLOBAL_OPTIONS = ("--config", "--server", "--debug", "--version")
_LONGEST_SENTENCE = 4_000
_REPORT = "please report it to the project, with what --debug prints"


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Whatever a command raises becomes a sentence and an exit code; a traceback only with ``--debug``."""
    try:
        yield
    except GpuCostError as error:
        if debug:
            traceback.print_exc()
        complain(str(error))
        raise typer.Exit(
            next((code for kind, code in _CODES if isinstance(error, kind)), Exit.UNEXPECTED)
        ) from None
    except BrokenPipeError:
        # Whoever reads has had enough (``| head``). Nothing more can be said on stdout.
        sys.stdout = None
        raise typer.Exit(Exit.OK) from None
    except TyperException as error:
        error.message = _plain(error)
        raise
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(f"unexpected {type(error).__name__}: {error}; {_REPORT}")
        raise typer.Exit(Exit.UNEXPECTED) from None


@contextmanager
def fields_as(names: Mapping[str, str]) -> Iterator[None]:
    """An InputError names the option the user wrote: ``names`` is field -> option or argument."""
    try:
        yield
    except ConfigError:
        raise
    except InputError as error:
        if error.field not in names:
            raise
        raise InputError(names[error.field], error.value, error.allowed) from None


def complain(sentence: str) -> None:
    """One sentence on stderr. It may hold foreign text, which must not drive the terminal."""
    from gpucost.reports.display import visible

    typer.echo(f"gpucost: {visible(sentence, _LONGEST_SENTENCE)}", err=True)


def _plain(error: TyperException) -> str:
    """What the argument parser says, in words: no class of Python, and where a global option stands."""
    message = error.message.replace("Value error, ", "")
    if getattr(error, "option_name", None) in _GLOBAL_OPTIONS and message.startswith("No such option"):
        option = getattr(error, "option_name", "")
        return f"{message}; it is a global option and stands before the command: gpucost {option} … COMMAND"
    return message
