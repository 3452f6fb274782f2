"""Dumps: a cluster's objects in files, and the ``ClusterState`` read back from them, to work offline.

A dump is what ``kubectl get … -A -o json`` writes: a ``List`` of objects, as JSON or YAML, gzipped or not, in
one file or in a folder of files. Each is read whole, within limits: they may come from untrusted people.
gpucost's own dumps leave out private data and fields that gpucost does not read
(``gpucost.kube.dumps.scrub``), and contain the time when they were taken.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import yaml

from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.views.workload_families import one_per_job
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import iso, parse_instant
from gpucost.kube.dumps.scrub import scrubbed
from gpucost.kube.parse import yaml_documents
from gpucost.kube.parse.collections import ApiCollection
from gpucost.kube.parse.events import Object, Unreadable
from gpucost.kube.watch.scheduler_reader import SchedulerConfigBuilder

MOST_BYTES = 1 << 30
"""The greatest size of one file, also once it is inflated."""

_SUFFIXES = (".json", ".yaml", ".yml")
_GZIP = b"\x1f\x8b"
_STEP = 1 << 20
_READABLE = "a file that can be read, a folder, or - for standard input"
OURS = "gpucost.io/state"
"""Key in the metadata of gpucost's own dumps: when it was taken, in which versions, and what was refused."""

FORBIDDEN = "forbidden"
"""``CollectionStatus.problem`` of a collection that the API server forbids to list."""

_STDIN = "standard input"
_DEEPEST_LIST = 1
_ALLOWED = "objects of Kubernetes as kubectl writes them: kubectl get … -A -o json"
_SPACE = re.compile(r"\s*")


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


@dataclass(frozen=True, slots=True)
class DumpOrigin:
    """The origin of objects: when they were listed, in which version each collection was (empty where it is
    not served), and which were forbidden."""

    at_ms: int
    versions: Mapping[str, str]
    forbidden: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DumpContent:
    """A state made of objects. ``is_dated``: its time is known, not guessed. ``left_out`` counts what is not
    in it: objects of a kind or version that gpucost does not read, ``unreadable`` ones, and links."""

    state: ClusterState
    is_dated: bool
    left_out: Mapping[str, int]


class ClusterStateBuilder:
    """A ``ClusterState`` from objects given one by one, each with its apiVersion and kind; none is kept.

    Of two objects with the same uid the later one counts.
    """

    def __init__(self, collections: Iterable[ApiCollection]) -> None:
        self._by_kind = {(each.group, each.kind): each for each in collections}
        self._fields: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, str] = {}
        self._forbidden: dict[str, None] = {}
        self._left_out: Counter[str] = Counter()
        self._at_ms: int | None = None
        self._schedulers = SchedulerConfigBuilder()

    def add(self, item: Object) -> None:
        """One object."""
        api_version, kind = str(item.get("apiVersion", "")), str(item.get("kind", ""))
        group, _, version = api_version.rpartition("/")
        is_of_scheduler = self._schedulers.add(item)
        collection = self._by_kind.get((group, kind))
        if collection is None and is_of_scheduler:
            return
        if collection is None or version not in collection.versions:
            self.skip(f"{kind or 'no kind'} ({api_version or 'no apiVersion'})")
            return
        try:
            found = collection.parse(item)
        except Unreadable:
            self.skip("unreadable")
            return
        self._versions[collection.name] = self._versions.get(collection.name) or version
        self._fields.setdefault(collection.field, {})[found.meta.uid] = found

    def skip(self, what: str) -> None:
        """Count an object that is not read."""
        self._left_out[what] += 1

    def note(self, origin: DumpOrigin) -> None:
        """Record an origin; of several, the newest gives the time."""
        self._at_ms = max(origin.at_ms, self._at_ms or 0)
        self._forbidden.update(dict.fromkeys(origin.forbidden))
        for name, version in origin.versions.items():
            self._versions[name] = self._versions.get(name) or version

    def loaded(self, now_ms: int, at_ms: int | None = None) -> DumpContent:
        """The state, at ``at_ms``; else at the time it was taken, or ``now_ms`` where no origin has a
        time."""
        is_dated = at_ms is not None or self._at_ms is not None
        if at_ms is None:
            at_ms = now_ms if self._at_ms is None else self._at_ms
        statuses = {
            name: CollectionStatus("", synced=False, problem=FORBIDDEN, seen_ms=at_ms)
            for name in self._forbidden
        } | {
            name: CollectionStatus(version, synced=True, absent=not version, seen_ms=at_ms)
            for name, version in self._versions.items()
        }
        schedulers = self._schedulers.configs()
        fields: dict[str, Any] = dict(self._fields)
        if "workloads" in fields:
            fields["workloads"] = one_per_job(fields["workloads"])
        state = ClusterState(at_ms, dict(sorted(statuses.items())), schedulers=schedulers, **fields)
        return DumpContent(state, is_dated, dict(sorted(self._left_out.items())))


# Writing


def named(collection: ApiCollection, version: str, item: Object) -> dict[str, Any]:
    """An object of a typed list, whose items lack apiVersion and kind, with these."""
    api_version = f"{collection.group}/{version}" if collection.group else version
    return {**item, "apiVersion": api_version, "kind": collection.kind}


def line_of(item: Object, annotations: frozenset[str] = frozenset()) -> str:
    """An object as written to a dump: scrubbed, one line of ASCII."""
    return json.dumps(scrubbed(item, annotations), separators=(",", ":"))


def opening() -> str:
    """The beginning of a dump; lines of objects follow, with ``,`` and a line end between them."""
    return '{"apiVersion":"v1","kind":"List","items":[\n'


def closing(origin: DumpOrigin) -> str:
    """The end of a dump with its metadata, which is complete only then."""
    about = {
        "takenAt": iso(origin.at_ms),
        "collections": dict(origin.versions),
        "forbidden": list(origin.forbidden),
    }
    return f'\n],"metadata":{json.dumps({OURS: about})}}}\n'


# Reading


def read_dump(
    source: Path | IO[bytes] | bytes, gathering: ClusterStateBuilder, most_bytes: int = MOST_BYTES
) -> None:
    """From a file, a folder of files (those that end in .json, .yaml, .yml, with or without .gz, and are not
    hidden), or standard input, as a stream or bytes; each of at most ``most_bytes``, inflated.

    Raises InputError naming the file, if it cannot be read or holds no objects.
    """
    if isinstance(source, Path):
        for file in files(source, gathering.skip):
            _add(gathering, str(file), content_of(file, most_bytes))
        return
    stream = BytesIO(source) if isinstance(source, bytes) else source
    _add(gathering, _STDIN, read(_STDIN, stream, most_bytes))


def _add(gathering: ClusterStateBuilder, name: str, content: bytes) -> None:
    try:
        for document in _documents(name, _text(name, content)):
            origin = _origin(name, document)
            if origin is not None:
                gathering.note(origin)
            elif isinstance(document, dict) and "kind" not in document:
                raise InputError(f"{name}: kind", ErrorRemark("missing"), _ALLOWED)
            for item in _items(name, document):
                gathering.add(item)
    except RecursionError:
        raise InputError(name, ErrorRemark("nested too deep"), _ALLOWED) from None


def _origin(name: str, document: Any) -> DumpOrigin | None:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    about = metadata.get(OURS) if isinstance(metadata, dict) else None
    if not isinstance(about, dict):
        return None
    at_ms = parse_instant(str(about.get("takenAt")), f"{name}: takenAt")
    versions, forbidden = about.get("collections"), about.get("forbidden")
    if not isinstance(versions, dict) or not isinstance(forbidden, list):
        raise InputError(f"{name}: {OURS}", about, "what gpucost state dump writes")
    return DumpOrigin(
        at_ms, {str(key): str(value) for key, value in versions.items()}, [*map(str, forbidden)]
    )


def _items(name: str, found: Any, level: int = 0) -> Iterator[Object]:
    """The objects in a document: itself, or those of a list, whose items may lack a kind. A list may contain
    lists, but those no further ones."""
    kind = str(found.get("kind", "")) if isinstance(found, dict) else ""
    about, below = {}, found
    if kind.endswith("List") and "items" in found:
        below = found["items"] or []
        if not isinstance(below, list):
            raise InputError(f"{name}: items", below, "a list")
        if kind != "List":
            about = {"apiVersion": found.get("apiVersion"), "kind": kind.removesuffix("List")}
    elif isinstance(found, dict):
        yield found
        return
    if not isinstance(below, list):
        raise InputError(name, found, _ALLOWED)
    if level > _DEEPEST_LIST:
        raise InputError(name, ErrorRemark("lists in lists of lists"), _ALLOWED)
    for each in below:
        yield from _items(name, {**about, **each} if isinstance(each, dict) else each, level + 1)


def _documents(name: str, text: str) -> Iterable[Any]:
    start = text[_SPACE.match(text).end() :][:1]  # type: ignore[union-attr]
    if start in ("{", "["):
        return _json(name, text)
    if not start:
        raise InputError(name, ErrorRemark("empty"), _ALLOWED)
    if start == "<":
        raise InputError(name, ErrorRemark("a web page, or XML"), _ALLOWED)
    return _yaml(name, text)


def _json(name: str, text: str) -> Iterator[Any]:
    """One document, or several one after another."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError as error:
            line = getattr(error, "lineno", 1)
            remark = f"JSON that is cut short or broken in line {line:,} of {text.count(chr(10)) + 1:,}"
            raise InputError(name, ErrorRemark(remark), _ALLOWED) from None
        yield found


def _yaml(name: str, text: str) -> list[Any]:
    try:
        found = [each for each in yaml_documents.documents(name, text) if each is not None]
    except (yaml.YAMLError, ValueError):
        raise InputError(name, ErrorRemark("neither JSON nor YAML"), _ALLOWED) from None
    if not found:
        raise InputError(name, ErrorRemark("empty"), _ALLOWED)
    return found


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode(json.detect_encoding(content)) if content else ""
    except UnicodeDecodeError:
        raise InputError(name, ErrorRemark("not text"), _ALLOWED) from None
