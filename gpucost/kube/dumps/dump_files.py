"""The files of a dump, each read whole, within limits: they may come from untrusted people."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO

from gpucost.domain.errors import ErrorRemark, InputError

MOST_BYTES = 1 << 30
"""The greatest size of one file, also once it is inflated."""

_SUFFIXES = (".json", ".yaml", ".yml")
_GZIP = b"\x1f\x8b"
_STEP = 1 << 20
_READABLE = "a file that can be read, a folder, or - for standard input"


def files(source: Path, skip: Callable[[str], None]) -> list[Path]:
    """``source`` itself, or of a folder the files below that end in .json, .yaml, .yml, with or without .gz.

    Hidden files belong to other programs, such as the cache of kubectl. Links that lead out of the folder are
    skipped and reported. Raises InputError for a folder without any.
    """
    try:
        if not source.is_dir():
            return [source]
        inside = source.resolve()
        named = sorted(each for each in source.rglob("*") if _is_shown(each.relative_to(source)))
        found = []
        for each in named:
            leads_out = each.is_symlink() and not _target(each).is_relative_to(inside)
            if leads_out and (_is_dump(each) or each.is_dir()):
                skip(f"link out of the folder ({each.relative_to(source)})")
            elif _is_dump(each):
                found.append(each)
    except OSError as error:
        raise _unreadable(str(source), error) from None
    if not found:
        allowed = "a folder with files *.json or *.yaml, or these with .gz"
        raise InputError(str(source), ErrorRemark("no dump in it"), allowed)
    return found


def content_of(file: Path, most: int) -> bytes:
    """The content of a file, inflated. Raises InputError naming it, if it is not a file or is too large."""
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError(str(file), ErrorRemark("not a file"), _READABLE)
        if about.st_size > most:
            raise _too_large(str(file), most)
        with file.open("rb") as stream:
            return read(str(file), stream, most)
    except OSError as error:
        raise _unreadable(str(file), error) from None


def read(name: str, stream: IO[bytes], most: int) -> bytes:
    """The rest of ``stream``, inflated; ``name`` is for errors."""
    content = _limited(name, stream.read, most)
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            return _limited(name, file.read, most)
    except (OSError, EOFError, zlib.error):
        remark = ErrorRemark("a gzip file that is cut short or broken")
        raise InputError(name, remark, "a whole one") from None


def _limited(name: str, read_some: Callable[[int], bytes], most: int) -> bytes:
    steps, size = [], 0
    while step := read_some(_STEP):
        steps.append(step)
        size += len(step)
        if size > most:
            raise _too_large(name, most)
    return b"".join(steps)


def _is_shown(way: Path) -> bool:
    return not any(part.startswith(".") for part in way.parts)


def _is_dump(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(_SUFFIXES) and file.is_file()


def _target(link: Path) -> Path:
    return Path(os.path.realpath(link))


def _too_large(name: str, most: int) -> InputError:
    size = f"{most >> 30} GiB" if most >> 30 else f"{most >> 20} MiB"
    return InputError(name, ErrorRemark(f"more than {size}, once inflated"), "parts of it, in several files")


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(name, ErrorRemark(error.strerror or "cannot be read"), _READABLE)
