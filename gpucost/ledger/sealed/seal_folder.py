"""Where sealed files lie: a folder, or an object store by its URL (fsspec), and the list of a month's files.

A file's name ends with a part of its SHA-256, so no file is ever written over another: what is registered in
the ledger stays, whoever seals again. A file gets its name when it is whole. ``SealManifest`` is the list;
its own SHA-256 stands in the ledger.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from gpucost.domain.errors import InputError, LedgerDamaged, LedgerError, LedgerUnavailable
from gpucost.domain.time import Month
from gpucost.ledger.sealed.seal_schema import FORMAT, TABLES, VERSION, check_version

LAKE = "pip install 'gpucost[lake]' brings it"
LISTS = "manifests/"
_DRAFTS = ".gpucost-draft-"
_LOCK = "lock"
_OLD_S = 86_400
_CHUNK = 1 << 20
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file of one table of a month and cluster; ``path`` is below the folder."""

    table: str
    cluster: str
    path: str
    sha256: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class SealManifest:
    """All files of a sealed month, and what they are of: the digests of the month and of its folding."""

    month: Month
    month_digest: str
    fold_digest: str
    files: tuple[SealedFile, ...]
    version: int = VERSION

    def encoded(self) -> bytes:
        content = {"format": FORMAT, **asdict(self), "month": str(self.month)}
        return json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True).encode()

    @classmethod
    def decoded(cls, content: bytes, place: str) -> Self:
        found = json.loads(content)
        version = check_version(found.get("version"), place)
        files = tuple(
            SealedFile(**{name: each[name] for name in SealedFile.__slots__}) for each in found["files"]
        )
        digests = found["month_digest"], found["fold_digest"]
        return cls(Month.parse(found["month"]), *digests, files, version)


def manifest_path(month: Month, sha256: str) -> str:
    return f"{LISTS}{month}-{sha256[:16]}.json"


class SealFolder:
    """The folder or bucket of the setting ``ledger.sealed``. Its errors are LedgerUnavailable where trying
    again may help, and LedgerDamaged for a file that is not there."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise LedgerError(f"sealed months need fsspec: {LAKE}") from None
        if "::" in url:
            raise InputError("ledger.sealed", url, "a folder, or one URL: no chain of URLs (::)")
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InputError(
                "ledger.sealed", url, f"a folder, or a URL that fsspec opens ({error})"
            ) from None
        self._root = self._root.rstrip("/") or "/"
        protocol = self._files.protocol
        self._protocol = protocol if isinstance(protocol, str) else protocol[0]

    @property
    def filesystem(self) -> Any:
        """For DuckDB, where the files are no local ones; else None."""
        return None if self.is_local else self._files

    @property
    def is_local(self) -> bool:
        return self._protocol in ("file", "local")

    def address(self, path: str) -> str:
        """The place of a file, for DuckDB and for messages."""
        place = f"{self._root}/{path}"
        return place if self.is_local else f"{self._protocol}://{place}"

    def content(self, path: str) -> bytes:
        with self._errors(path):
            return bytes(self._files.cat_file(f"{self._root}/{path}"))

    def size(self, path: str) -> int:
        with self._errors(path):
            return int(self._files.info(f"{self._root}/{path}")["size"])

    def sha256(self, path: str) -> tuple[str, int]:
        """The hash and size of what lies there."""
        digest, size = hashlib.sha256(), 0
        with self._errors(path), self._files.open(f"{self._root}/{path}", "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return digest.hexdigest(), size

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        """A file to read from."""
        with self._errors(path):
            file = self._files.open(f"{self._root}/{path}", "rb")
        with file:
            yield file

    def put(self, draft: Path, path: str) -> None:
        """Move a whole file to its place."""
        target = f"{self._root}/{path}"
        if self.is_local:
            with self.writing():
                self._make_folder(Path(target).parent)
                with suppress(OSError):  # a file system without modes
                    draft.chmod(0o600 | self._group_mode() & 0o040)
                _synced(draft)
                draft.replace(target)
                _synced(Path(target).parent)
        else:
            with self._errors(path):
                self._files.put_file(str(draft), target)

    def remove(self, path: str) -> None:
        with self._errors(path):
            self._files.rm_file(f"{self._root}/{path}")

    def of_month(self, month: Month) -> list[str]:
        """Every file that lies there of a month, registered or not."""
        found = list[str]()
        self._files.invalidate_cache()  # other processes write here
        for folder in (*(f"{table}/month={month}" for table in TABLES), LISTS.rstrip("/")):
            with self._errors(folder), suppress(FileNotFoundError):
                found += self._files.ls(f"{self._root}/{folder}", detail=False)
        cut = len(self._root.rstrip("/")) + 1
        begins = (*(f"{table}/month={month}/" for table in TABLES), f"{LISTS}{month}-")
        paths = sorted(path for each in found if (path := str(each)[cut:]).startswith(begins))
        return [path for path in paths if path.endswith((".parquet", ".json"))]  # and no marks of tools

    @contextmanager
    def drafts(self, month: Month) -> Iterator[Path]:
        """A folder for files that are not whole yet, of this process alone: on the same disk as where they
        go, or a temporary one. What killed processes left of the same month is removed."""
        with self.writing():
            home, lock = self._draft(month)
        try:
            with self.writing():
                yield home
        finally:
            shutil.rmtree(home, ignore_errors=True)
            os.close(lock)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What a disk refuses while files are written, as the ledger's error."""
        try:
            yield
        except OSError as error:
            place = self._root if self.is_local else tempfile.gettempdir()
            why = error.strerror if error.errno is None else os.strerror(error.errno)
            raise LedgerUnavailable(
                f"ledger.sealed: no file can be written in the folder {place}: {why or error}"
            ) from error

    def _draft(self, month: Month) -> tuple[Path, int]:
        """It is locked for as long as this process lives: the lock tells it from one that was left behind."""
        place = Path(self._root) if self.is_local else Path(tempfile.gettempdir())
        self._make_folder(place)
        _clear_drafts(place, month)
        while True:
            home = Path(tempfile.mkdtemp(prefix=f"{_DRAFTS}{month}-", dir=place))
            lock = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            with suppress(OSError):  # a file system without locks: drafts are then never removed
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return home, lock
            os.close(lock)  # another process removed it before it was locked

    def _make_folder(self, path: Path) -> None:
        """Folders for their owner alone, as a ledger's file is: lines have the names of all teams. The group
        may look where the owner of the whole folder lets it."""
        if not path.is_dir():
            self._make_folder(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)
            with suppress(OSError):  # a file system without modes; the umask may have taken the group's
                path.chmod(path.stat().st_mode & 0o2000 | 0o700 | self._group_mode())

    def _group_mode(self) -> int:
        """What the folder's group may do, but write."""
        root = Path(self._root)
        return root.stat().st_mode & 0o050 if root.is_dir() else 0

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise LedgerDamaged(
                f"the sealed file {self.address(path)} is not there: put it back, or set ledger.sealed to "
                "where it is"
            ) from error
        except LedgerError:
            raise
        except Exception as error:  # every store has errors of its own
            raise LedgerUnavailable(f"sealed file {self.address(path)}: {error}") from error


class SealedMonth:
    """The manifest of one registered month, which is read once and proven by its hash."""

    def __init__(self, folder: SealFolder, month: Month, sha256: str) -> None:
        self._folder, self._month, self._sha256 = folder, month, sha256

    @cached_property
    def manifest(self) -> SealManifest:
        """Raises LedgerDamaged where it is another than the ledger says, SealTooNew for a later version."""
        path = manifest_path(self._month, self._sha256)
        content = self._folder.content(path)
        if hashlib.sha256(content).hexdigest() != self._sha256:
            raise LedgerDamaged(f"{self._folder.address(path)} was changed: the ledger has {self._sha256}")
        return SealManifest.decoded(content, self._folder.address(path))


def _clear_drafts(place: Path, month: Month) -> None:
    """Removes drafts of a month that no process has locked, and old ones of a release that locked none."""
    for home in place.glob(f"{_DRAFTS}{month}*"):
        with suppress(OSError):
            if not (home / _LOCK).exists():
                if time.time() - home.stat().st_mtime > _OLD_S:
                    shutil.rmtree(home, ignore_errors=True)
                continue
            with (home / _LOCK).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)


def changed_files(folder: SealFolder, files: Sequence[SealedFile]) -> Iterator[str]:
    """Every file that is missing or not what it was, in words."""
    for file in files:
        try:
            found, size = folder.sha256(file.path)
        except LedgerDamaged as error:
            yield str(error)
            continue
        if (found, size) != (file.sha256, file.size):
            yield f"{file.path} changed: SHA-256 {found}, sealed with {file.sha256}"


def is_there(folder: SealFolder, files: Sequence[SealedFile]) -> bool:
    """Whether files that were proven lie there still: their names have their hashes, and none is written
    over."""
    try:
        return all(folder.size(file.path) == file.size for file in files)
    except LedgerDamaged:
        return False


def file_name(table: str, cluster: str, sha256: str) -> str:
    """``cluster`` in signs that every store and shell takes, for whoever looks at the folder."""
    shown = re.sub(r"[^A-Za-z0-9._-]", "_", cluster)[:_SHOWN]
    return f"{table}-{shown}-{sha256[:16]}.parquet"


def table_path(month: Month, table: str, name: str) -> str:
    return f"{table}/month={month}/{name}"


def file_hash(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size


def _synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
