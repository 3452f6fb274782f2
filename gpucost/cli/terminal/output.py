"""Output of results: to a terminal, a pipe, or a file that is there whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from gpucost.cli.terminal.exit_codes import complain
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from gpucost.domain.time import Window
    from gpucost.ledger.ledger import Ledger

_MOST_NODES = 3
_CONTROL = re.compile(
    r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Characters that move the cursor, change their neighbours, or cannot be seen."""
OnWindow = Callable[[str, "Window"], None]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
]


def write(content: str | bytes, output: Path | None) -> None:
    """``content`` to ``output``, or to stdout. Raises InputError when the file cannot be written."""
    on_screen = output is None and sys.stdout.isatty()
    if isinstance(content, str) and on_screen:
        content = _without_control(content)
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    if output is not None:
        write_file(output, data)
    elif isinstance(content, bytes) and on_screen:
        raise InputError("--output", ErrorRemark("missing"), "a file: this format is not for terminals")
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def make_folder(folder: Path, option: str) -> None:
    """A folder to write into, of ``option``. Raises InputError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(option, str(folder), f"a folder that can be made ({error.strerror})") from None


def write_made(make: Callable[[IO[bytes]], None], output: Path | None, *, is_binary: bool) -> None:
    """What ``make`` writes, which may be larger than memory: to ``output``, whole or not at all, or to
    stdout. Raises InputError as ``write``."""
    if output is None and is_binary and sys.stdout.isatty():
        raise InputError("--output", ErrorRemark("missing"), "a file: this format is not for terminals")
    with TemporaryFile() as spooled:
        make(spooled)
        spooled.seek(0)
        if output is not None:
            write_file(output, spooled)
            return
        if sys.stdout.isatty():
            for line in spooled:
                sys.stdout.buffer.write(_without_control(line.decode("utf-8")).encode("utf-8"))
        else:
            shutil.copyfileobj(spooled, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _without_control(text: str) -> str:
    """For a screen: a server may send text that moves the cursor or sets the title of the window."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def refuse_short_file(is_short: bool, format_: str) -> None:
    """``--short`` is of a terminal's table. Raises InputError."""
    if is_short and format_ != "table":
        raise InputError("--short", ErrorRemark("given"), "with --format table only")


def refuse_table_file(is_table: bool, output: Path | None) -> None:
    """A table is made for a terminal; and an unwritable file is reported before the read, which may take
    minutes. Raises InputError."""
    if output is None:
        return
    if is_table:
        raise InputError("--output", str(output), "a --format other than table")
    reason = _unwritable(output)
    if reason:
        raise InputError("--output", str(output), f"a file that can be written ({os.strerror(reason)})")


def _unwritable(path: Path) -> int:
    """The error number that ``write_file`` would meet, as far as that can be known before; else 0."""
    try:
        if path.is_dir():
            return errno.EISDIR
        if path.exists() and not path.is_file():
            return 0
        folder = path.resolve().parent
        if not folder.exists():
            return errno.ENOENT
        if not folder.is_dir():
            return errno.ENOTDIR
        return 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES
    except (OSError, RuntimeError):  # the write itself will report that
        return 0


def held(ledger: Ledger, what: str) -> str:
    """What the ledger holds, as the allowed values in place of a missing one."""
    extent = ledger.extent()
    return "nothing: the ledger is empty" if extent is None else f"{what} {extent}, which the ledger holds"


def complain_of_prices(ledger: Ledger, span: Window, cluster: str | None = None) -> None:
    """Print each price in ``span`` that needs a review, once, on standard error."""
    from gpucost.domain.errors import DataProblemCode
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.display import visible

    told = (each for each in ledger.problems(EVERYTHING, span) if each.code is DataProblemCode.PRICE_DOUBTFUL)
    for of, node, detail in sorted({(each.cluster, each.subject, each.detail) for each in told}):
        if cluster in (None, of):
            complain(f"{visible(of)}: the price of {visible(node)}: {visible(detail, len(detail))}")


def complain_of_unpriced(ledger: Ledger, span: Window, cluster: str) -> None:
    """Print how much of the capacity in ``span`` has no price, and whose it is, on standard error; nothing
    where all of it has one. ``span`` has edges of windows."""
    from gpucost.domain.buckets import Bucket
    from gpucost.domain.scope import EVERYTHING
    from gpucost.reports.base.display import hours, percent, visible
    from gpucost.reports.base.values import ratio

    windows = ledger.windows(span, cluster)
    missing_ms, all_ms = (
        sum(getattr(each, name) for each in windows) for name in ("unpriced_ms", "board_ms")
    )
    if not missing_ms:
        return
    filters = {"bucket": [str(each) for each in Bucket if each.is_capacity], "rate_id": ("",)}
    lines = ledger.aggregate(EVERYTHING.within((cluster,)), span, ("model", "node"), filters=filters)
    unpriced = lines[lines["unpriced_ms"] > 0]
    parts = []
    for model, rows in unpriced.groupby("model", observed=True):
        nodes = sorted({visible(str(node)) for node in rows["node"]})
        more = f" and {len(nodes) - _MOST_NODES:,} more" if len(nodes) > _MOST_NODES else ""
        own = hours(int(rows["unpriced_ms"].sum()))
        parts.append(
            f"{own} of {visible(str(model)) or 'no known model'} ({', '.join(nodes[:_MOST_NODES])}{more})"
        )
    complain(
        f"{visible(cluster)}: {hours(missing_ms)} of {hours(all_ms)} GPU-hours have no price, and are in "
        f"no cost ({percent(ratio(missing_ms, all_ms), 1)}): {'; '.join(parts)}"
    )


def write_file(path: Path, data: bytes | IO[bytes]) -> None:
    """``data``, or what a file has from where it stands, is written beside its place and renamed into it, so
    that a reader never sees half a file.

    A link leads to its file, which keeps its mode; a device or a pipe is written to, not replaced.
    """
    try:
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with path.open("wb") as target:
                _copy(data, target)
            return
        # Only now: where /dev/stdout is a pipe, the path that this gives does not exist.
        path = path.resolve()
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            try:
                _copy(data, temporary)
                temporary.flush()
                os.fsync(temporary.fileno())
                Path(temporary.name).chmod(0o644 & ~_umask() if mode is None else stat.S_IMODE(mode))
                Path(temporary.name).replace(path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or "a link to itself"
        raise InputError("--output", str(path), f"a file that can be written ({reason})") from None


def _copy(data: bytes | IO[bytes], target: IO[bytes]) -> None:
    if isinstance(data, bytes):
        target.write(data)
    else:
        shutil.copyfileobj(data, target)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def tolerate_narrow_encodings() -> None:
    """A terminal of ASCII shows a question mark for characters it cannot show, instead of
    ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def stdout(*, whole: bool = False) -> Console:
    """For results. Outside a terminal, it is as wide as COLUMNS says, else as a printed page, and has no
    colours; with ``whole``, for printers that handle it, it has no width without COLUMNS: no table is cut."""
    from gpucost.cli.terminal.columns import ResultConsole, TrimmedStream
    from gpucost.reports.render.terminal_parts import PAGE, WHOLE

    if sys.stdout.isatty():
        return ResultConsole(highlight=False)
    asked = os.environ.get("COLUMNS", "")
    given = int(asked) if asked.isdecimal() and int(asked) else None
    stream = cast("IO[str]", TrimmedStream(sys.stdout))
    return ResultConsole(file=stream, width=given or (WHOLE if whole else PAGE), highlight=False)


def stderr() -> Console:
    """For progress and remarks."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def progress(label: str, total: int) -> Iterator[OnWindow]:
    """A bar on stderr that counts windows; nothing at all unless stderr is a terminal."""
    with bars() as add:
        yield add(label, total)


@contextmanager
def bars() -> Iterator[Callable[[str, int], OnWindow]]:
    """As ``progress``, of bars that are added one after the other: each by its label and total."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = stderr()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:

        def add(label: str, total: int) -> OnWindow:
            task = shown.add_task(label, total=total)

            def advance(cluster: str, window: Window) -> None:
                del cluster, window
                shown.advance(task)

            return advance

        yield add
