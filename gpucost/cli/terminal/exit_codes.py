"""Exit codes, errors as one sentence on stderr, and signals.

A requested end works as Ctrl-C does, so that unfinished work is tidied up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum

import typer
from typer.exceptions import TyperException

from gpucost.domain.errors import (
    ChargesChanged,
    ConfigError,
    GpuCostError,
    InputError,
    LedgerError,
    SourceError,
    shorten,
)


class ExitCode(IntEnum):
    """docs/cli.md and ``gpucost --help`` list these. Shells have 130 for Ctrl-C."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    SOURCE = 3
    LEDGER = 4
    VERIFICATION = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.UNEXPECTED: "an error of gpucost itself",
    ExitCode.USAGE: "wrong usage, input or settings; the message names field, value and what is allowed",
    ExitCode.SOURCE: "the source could not answer; windows stay open, the same command may be run again",
    ExitCode.LEDGER: "the ledger refused (month closed, conflict) or cannot be reached",
    ExitCode.VERIFICATION: "verification failed: totals do not add up, or the ledger was changed "
    "behind its back",
    ExitCode.INTERRUPTED: "ended by Ctrl-C, or asked to end",
}
EPILOG = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."

_CODES: tuple[tuple[type[GpuCostError], ExitCode], ...] = (
    (InputError, ExitCode.USAGE),
    (SourceError, ExitCode.SOURCE),
    (LedgerError, ExitCode.LEDGER),
)
_GLOBAL_OPTIONS = ("--config", "--server", "--debug", "--version")
_LONGEST_SENTENCE = 4_000
_REPORT = "please report it to the project, with what --debug prints"


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Every error of a command becomes a sentence and an exit code; a traceback only with ``--debug``."""
    try:
        yield
    except GpuCostError as error:
        if debug:
            traceback.print_exc()
        # Who has the ledger itself sees every team.
        complain(error.whole if isinstance(error, ChargesChanged) else str(error))
        raise typer.Exit(code_of(error)) from None
    except BrokenPipeError:
        # The reader has closed the pipe (``| head``). Nothing more can be written to stdout.
        sys.stdout = None
        raise typer.Exit(ExitCode.OK) from None
    except TyperException as error:
        error.message = _plain(error)
        raise
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(f"unexpected {type(error).__name__}: {error}; {_REPORT}")
        raise typer.Exit(ExitCode.UNEXPECTED) from None


def code_of(error: GpuCostError) -> ExitCode:
    """What a command ends with that fails with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


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
    from gpucost.reports.base.display import visible

    typer.echo(f"gpucost: {visible(sentence, _LONGEST_SENTENCE)}", err=True)


def _plain(error: TyperException) -> str:
    """The argument parser's message in words: without Python's classes, and with the place of
    global options."""
    message = _of_number(error) or error.message.replace("Value error, ", "")
    if getattr(error, "option_name", None) in _GLOBAL_OPTIONS and message.startswith("No such option"):
        option = getattr(error, "option_name", "")
        return f"{message}; it is a global option and stands before the command: gpucost {option} … COMMAND"
    return message


def _of_number(error: TyperException) -> str:
    """What is wrong with a number, in our words; empty where the parser's error is about none."""
    errors, param = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    first: dict[str, object] = next(iter(errors()), {}) if callable(errors) else {}
    kind, _, _ = str(first.get("type", "")).partition("_")
    if param is None or kind not in ("int", "float", "greater", "less", "finite"):
        return ""
    number = "a whole number" if param.type_descriptor.annotation is int else "a number"
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is not None and most is not None:
        number += f" from {least} to {most}"
    elif least is not None:
        number += f" of at least {least}"
    elif most is not None:
        number += f" of at most {most}"
    return f"{shorten(first.get('input'))} is not allowed; allowed: {number}"


_ASKED = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """In this block SIGTERM and the end of the terminal raise KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers of signals
        return
    before = {each: signal.signal(each, _interrupt) for each in _ASKED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """In this block Ctrl-C ends the process, without a message or clean-up. For imports only: they leave
    nothing behind, and an exception in the middle of one may be printed, or taken for a missing module."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
