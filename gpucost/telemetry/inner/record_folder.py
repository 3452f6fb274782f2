"""The files of an inner scheduler's records: one file, or all files of a folder, as a cron left them.

A file's modification time is when it was written: nothing later is known from it. A file that has not changed
is not read again. What cannot be read is refused with a sentence, and never stops a window.

Of a folder, links that lead out of it are not followed: who may write there shall not have other files read
and shown. A pipe is no file, also where it took the place of one.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.settings.secret_files import read_small
from gpucost.telemetry.inner.inner_jobs import JobRecords, KnownRuns, known_runs

MOST_BYTES = 64 << 20
MOST_FILES = 10_000
_LEFT_OUT = (".tmp", ".part", "~")
"""Ends of names of files that are being written."""

RecordParser = Callable[[str, str], JobRecords]
"""Text and the name of its file -> what it says."""


class RecordFolder:
    """``path`` is a file or a folder; ``parse`` reads the text of one file. For several threads."""

    def __init__(self, path: Path, parse: RecordParser) -> None:
        self.path = path
        self._parse = parse
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], JobRecords]] = {}

    def runs(self) -> KnownRuns:
        """What all files together say now. A folder that is missing is one without files, and refused."""
        with self._lock:
            found: list[tuple[int, JobRecords]] = []
            try:
                files = list(self._files())
            except (OSError, InputError) as error:
                return KnownRuns(refused=(_sentence(self.path, error),))
            kept: dict[Path, tuple[tuple[int, int], JobRecords]] = {}
            unread: list[str] = []
            for file in files:
                try:
                    stat = file.stat()
                    as_it_is = (stat.st_mtime_ns, stat.st_size)
                    before = self._read.get(file)
                    records = before[1] if before and before[0] == as_it_is else self._records(file)
                except (OSError, InputError) as error:
                    unread.append(_sentence(file, error))
                    continue
                kept[file] = (as_it_is, records)
                found.append((stat.st_mtime_ns // 1_000_000, records))
            self._read = kept
        known = known_runs(found)
        return KnownRuns(known.runs, known.as_of_ms, (*unread, *known.refused))

    def _files(self) -> Iterator[Path]:
        if not self.path.is_dir():
            yield self.path
            return
        with os.scandir(self.path) as entries:
            names = sorted(each.name for each in entries if _is_file(each))
        shown = [name for name in names if not name.startswith(".") and not name.endswith(_LEFT_OUT)]
        if len(shown) > MOST_FILES:
            raise InputError(str(self.path), ErrorRemark(f"{len(shown):,} files"), f"at most {MOST_FILES:,}")
        inside = Path(os.path.realpath(self.path))
        files = (self.path / name for name in shown)
        yield from (file for file in files if Path(os.path.realpath(file)).is_relative_to(inside))

    def _records(self, file: Path) -> JobRecords:
        if file.stat().st_size > MOST_BYTES:
            raise InputError(str(file), ErrorRemark("too large"), f"at most {MOST_BYTES >> 20} MiB")
        # A name that somebody gave a job may be any bytes: it must not cost the jobs of all others.
        return self._parse(read_small(file, MOST_BYTES).decode(errors="replace"), str(file))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _sentence(path: Path, error: OSError | InputError) -> str:
    if isinstance(error, InputError):
        return str(error)
    reason = ErrorRemark(f"cannot be read ({error.strerror})")
    return str(InputError(str(path), reason, "a file of records, or a folder of them"))


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A value, and its place in a file, such as ``jobs.json: jobs[3].time``.

    Where a list or an object is expected, an error says what kind of value is there and not the value: a file
    that is something else altogether may be a secret.
    """

    value: object
    where: str

    @classmethod
    def parse(cls, text: str, file: str) -> JsonPlace:
        """Raises InputError, which names the line."""
        try:
            return cls(json.loads(text), f"{file}:")
        except (ValueError, RecursionError) as error:
            line = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "text"
            raise InputError(f"{file}: {line}", ErrorRemark("is not JSON"), "one JSON document") from None

    def at(self, *path: str) -> JsonPlace:
        """The value under these keys; None where one is missing or null on the way."""
        value: object = self.value
        where = self.where
        for key in path:
            if value is not None and not isinstance(value, Mapping):
                raise InputError(where, _kind(value), f"an object with {key}")
            value = None if value is None else value.get(key)
            where = f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
        return JsonPlace(value, where)

    def items(self) -> Sequence[JsonPlace]:
        if not isinstance(self.value, list):
            raise InputError(self.where, _kind(self.value), "a list")
        at = f"{self.where} " if self.where.endswith(":") else self.where
        return [JsonPlace(value, f"{at}[{n}]") for n, value in enumerate(self.value)]

    def text(self, default: str | None = None) -> str:
        """Raises InputError for anything but text; null is ``default``, where there is one."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise InputError(self.where, self.value, "text")
        return self.value

    def number(self) -> int | None:
        """A whole number, as such or as Slurm has those that may be unset: ``{"set": true, "number": 5}``.
        None where it is null or unset. Raises InputError."""
        value = self.value
        if isinstance(value, Mapping):
            if not value.get("set") or value.get("infinite"):
                return None
            value = value.get("number")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(self.where, self.value, "a whole number")
        return value


def _kind(value: object) -> ErrorRemark:
    """What a decoded value is, in the words of JSON."""
    if isinstance(value, bool) or value is None:
        return ErrorRemark("is null" if value is None else "is true or false")
    kinds: dict[type, str] = {str: "is text", list: "is a list", dict: "is an object"}
    return ErrorRemark(kinds.get(type(value), "is a number"))
