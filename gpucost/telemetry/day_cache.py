"""Days that are over, as they were read, in files of the user's cache: a second report asks for none of them.

A file is named by a digest of all that its content depends on: the server, the cluster, the day, how it is
read, and the code that reads it; so no name, address or secret is in a file's name. Its head is the digest of
its content: a file that is damaged is noticed, removed, and read anew. A file appears whole, by renaming, so
that several processes may share the folder; the least recently used ones are removed once all of them are
larger than the limit. Whatever the file system refuses means no cache, and never a failed report.

What a day holds may still change on the server: samples come late, or are deleted. So with each day stand the
counts of ``DayCounts``, which one query asks for all days together: where they differ, the day is read anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.device_dialects import DIALECTS
from gpucost.contract.frames import FRAMES, ColumnType
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.telemetry.prometheus.cluster_reader import points
from gpucost.telemetry.prometheus.promql import by, one_of, over_instants, over_time, tagged, union
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_FORMAT = "1"
_ENDING = ".gpucost-day"
_META = "frames.json"
_HEAD = 64
# Late or deleted samples are looked for at these instants: of every series a chunk or two a day.
_LOOKS_MS = 6 * HOUR_MS
_STALE_S = 3600.0


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """The folder of this user's cache by the custom of the platform; None without a home."""
    base = environ.get("XDG_CACHE_HOME", "")
    try:
        if base.startswith("/"):
            return Path(base) / "gpucost"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "gpucost"
        return Path.home() / ".cache" / "gpucost"
    except RuntimeError:
        return None


@dataclass(frozen=True)
class CacheFiles:
    """Contents by key, in ``folder``, of at most ``most_bytes`` together. May be shared by processes."""

    folder: Path
    most_bytes: int

    def get(self, key: str) -> bytes | None:
        """The content that was put under ``key``, the same bytes; None where there is none, or a damaged
        one."""
        path = self._path(key)
        try:
            whole = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        content = whole[_HEAD:]
        if whole[:_HEAD] == _digest(content).encode():
            return content
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, content: bytes) -> None:
        """Keep ``content``, in place of what there was."""
        if len(content) > self.most_bytes:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A file that only its owner may read.
            with NamedTemporaryFile(dir=self.folder, prefix=".new-", delete=False) as temporary:
                try:
                    temporary.write(_digest(content).encode())
                    temporary.write(content)
                    temporary.close()
                    Path(temporary.name).replace(self._path(key))
                except BaseException:
                    Path(temporary.name).unlink(missing_ok=True)
                    raise
            self._shrink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{_digest(key.encode())}{_ENDING}"

    def _shrink(self) -> None:
        """Remove the least recently used files above the limit, and what a killed process left."""
        kept: list[tuple[float, int, Path]] = []
        newest = 0.0
        for path in self.folder.iterdir():
            if path.name.endswith(_ENDING) or path.name.startswith(".new-"):
                with suppress(OSError):  # another process removed it
                    found = path.stat()
                    newest = max(newest, found.st_mtime)
                    kept.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in kept)
        for used, size, path in sorted(kept):
            is_left = path.name.startswith(".new-") and used < newest - _STALE_S
            if is_left or (total > self.most_bytes and path.name.endswith(_ENDING)):
                total -= size
                with suppress(OSError):
                    path.unlink()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def code_digest() -> str:
    """Of the code that says what a day holds, so that another release, or a changed one, never uses what this
    one kept."""
    import gpucost

    root = Path(gpucost.__file__).parent
    found = hashlib.sha256(f"{_FORMAT} {gpucost.__version__} {pd.__version__}".encode())
    for path in sorted(root.rglob("*.py")):
        told = path.stat()
        found.update(f"{path.relative_to(root)} {told.st_size} {told.st_mtime_ns}".encode())
    return found.hexdigest()


@dataclass(frozen=True)
class DayCache:
    """Frames of days in ``files``. ``identity`` is all that they depend on beside cluster and day. With
    ``refreshes``, what is there is not used, and written anew."""

    files: CacheFiles
    identity: str
    refreshes: bool = False

    def get(self, cluster: str, day: Window, kind: str, counts: Sequence[float]) -> ClusterFrames | None:
        """The frames of ``day``, exactly as they were put, if the server still counts the same."""
        content = None if self.refreshes else self.files.get(self._key(cluster, day, kind))
        if content is None:
            return None
        frames, counted = frames_of_bytes(content)
        return frames if [*counted] == [*counts] else None

    def put(
        self, cluster: str, day: Window, kind: str, counts: Sequence[float], frames: ClusterFrames
    ) -> None:
        """Keep ``frames``, where they can be written exactly."""
        with suppress(ValueError, TypeError):
            self.files.put(self._key(cluster, day, kind), bytes_of_frames(frames, counts))

    def get_bytes(self, key: str) -> bytes | None:
        """What was put under ``key`` by ``put_bytes``: of several days together, whose counts it names."""
        return None if self.refreshes else self.files.get(self._named(key))

    def put_bytes(self, key: str, content: bytes) -> None:
        self.files.put(self._named(key), content)

    def _named(self, key: str) -> str:
        return json.dumps([code_digest(), self.identity, key])

    def _key(self, cluster: str, day: Window, kind: str) -> str:
        return json.dumps([code_digest(), self.identity, cluster, day.start_ms, day.end_ms, kind])


def bytes_of_frames(frames: ClusterFrames, counts: Sequence[float]) -> bytes:
    """``frames`` as Parquet files in one archive. What cannot be written exactly is refused: ValueError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if frames.of_pods is not None:
        raise ValueError("frames that were divided among inner jobs are not kept")
    categories: dict[str, dict[str, list[str]]] = {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for spec in FRAMES:
            frame: pd.DataFrame = getattr(frames, spec.name)
            if not frame.index.equals(pd.RangeIndex(len(frame))):
                raise ValueError(f"{spec.name} has an index")
            arrays, coded = [], {}
            for column in spec.columns:
                values = frame[column.name]
                if values.dtype.name == "category":
                    coded[column.name] = values.cat.categories.tolist()
                    arrays.append(pa.array(values.cat.codes.to_numpy().astype("int32")))
                else:
                    arrays.append(pa.array(values.to_numpy(), type=_ARROW[column.type](), from_pandas=False))
            if coded:
                categories[spec.name] = coded
            if len(frame) or coded:
                file = io.BytesIO()
                pq.write_table(pa.table(arrays, names=[*spec.column_names]), file, compression="zstd")
                archive.writestr(f"{spec.name}.parquet", file.getvalue())
        problems = [(each.code.value, *_told(each)) for each in frames.problems]
        meta = {
            "counts": [*counts],
            "categories": categories,
            "problems": problems,
            "lacks": [*frames.lacks.items()],
            "source": frames.source,
        }
        archive.writestr(_META, json.dumps(meta))
    return buffer.getvalue()


def _told(problem: DataProblem) -> tuple[object, ...]:
    return problem.cluster, problem.subject, problem.detail, problem.board_ms, problem.at_ms


def frames_of_bytes(content: bytes) -> tuple[ClusterFrames, Sequence[float]]:
    """What ``bytes_of_frames`` was given."""
    import pyarrow.parquet as pq

    found: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        meta = json.loads(archive.read(_META))
        names = {*archive.namelist()}
        for spec in FRAMES:
            if f"{spec.name}.parquet" not in names:
                continue
            table = pq.read_table(io.BytesIO(archive.read(f"{spec.name}.parquet")))
            coded = meta["categories"].get(spec.name, {})
            columns = {}
            for column in spec.columns:
                values = table[column.name]
                if column.name in coded:
                    kinds = pd.CategoricalDtype(pd.Index(coded[column.name], dtype="str"))
                    columns[column.name] = pd.Categorical.from_codes(values.to_numpy(), dtype=kinds)
                elif column.type is ColumnType.TEXT:
                    columns[column.name] = pd.array(values.to_pylist(), dtype="str")
                else:
                    columns[column.name] = values.to_numpy()
            found[spec.name] = pd.DataFrame(columns)
    problems = tuple(DataProblem(DataProblemCode(code), *rest) for code, *rest in meta["problems"])
    frames = ClusterFrames(**found, problems=problems, lacks=dict(meta["lacks"]), source=meta["source"])
    return frames, meta["counts"]


def _arrow(name: str) -> Callable[[], Any]:
    def made() -> Any:
        import pyarrow as pa

        return getattr(pa, name)()

    return made


_ARROW = {
    ColumnType.TEXT: _arrow("large_string"),
    ColumnType.INTEGER: _arrow("int64"),
    ColumnType.REAL: _arrow("float64"),
}


class DayCounts:
    """What the server counts of each day of ``days``: scrapes of kube-state-metrics, every one of them, and
    at a few instants of the day the series of requests and nodes, and with ``reads_use`` of devices. One
    query for all days of a cluster. ``jobs`` are the scrape jobs of kube-state-metrics, asked for where they
    are not given."""

    def __init__(self, reader: KubeStateReader, days: Window, jobs: Sequence[str] | None = None) -> None:
        shown = reader.select_of_all(kube_state.NODE_CREATED)
        self.jobs = reader.label_values("job", shown, days.start_ms, days.end_ms) if jobs is None else jobs
        scrapes = reader.select_of_all(kube_state.UP, one_of("job", self.jobs))
        up = over_time("count_over_time", scrapes, DAY_MS)
        parts = {"scrapes": by("sum", (), up)}
        wanted = {
            "requests": reader.select_of_all(kube_state.REQUESTS, reader.is_gpu),
            "nodes": reader.select_of_all((kube_state.NODE_CREATED, kube_state.NODE_LABELS)),
        }
        if reader.settings.reads_use:
            wanted["devices"] = reader.select_of_all(_DEVICES)
        for name, selector in wanted.items():
            parts[name] = over_instants("sum_over_time", by("count", (), selector), DAY_MS, _LOOKS_MS)
        counted = union(*(tagged(each, "counted", name) for name, each in parts.items()))
        self._names = (*parts,)
        self._found: dict[int, dict[str, float]] = {}
        # Days end at midnight, wherever the first of ``days`` is cut.
        first_ms = (days.start_ms // DAY_MS + 1) * DAY_MS
        found = reader.matrix(counted, first_ms, days.end_ms, DAY_MS) if first_ms <= days.end_ms else ()
        for series in found:
            for at, value in zip(*points(series), strict=True):
                self._found.setdefault(at, {})[series["metric"].get("counted", "")] = value

    def of(self, day: Window) -> list[float]:
        """By kind, in a fixed order; 0 where there is none."""
        found = self._found.get(day.end_ms, {})
        return [found.get(name, 0.0) for name in self._names]


_SHOWN = (DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.MEMORY_USED)
_DEVICES = tuple(name for each in DIALECTS for name in each.spelled if each.meaning(name).field in _SHOWN)
