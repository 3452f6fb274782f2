"""Any source of intervals, with the pods of inner schedulers divided among their jobs.

``InnerSource`` stands between a source and all who read it. It reads windows from the source below, and
records from the files of the settings each time: records that come late change a window for as long as it is
read again, and not after that unless it is worked out anew, as with all late data.

Detectors are about pods, and see what pods held (``ClusterFrames.of_pods``); lines, and so the waste ledger,
are of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import ALLOCATIONS
from gpucost.contract.probe import InnerRecords
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.frame_rows import FrameRow, frame_of, in_order
from gpucost.telemetry.inner.inner_jobs import JobRecords, KnownRuns
from gpucost.telemetry.inner.pod_division import InnerScheduler, UnitSizes, divide
from gpucost.telemetry.inner.ray_jobs import MetadataKeys, read_ray_jobs
from gpucost.telemetry.inner.record_folder import JsonPlace, RecordFolder, RecordParser
from gpucost.telemetry.inner.slurm_records import read_sacct, read_slurmrestd
from gpucost.telemetry.interval_source import IntervalSource

_SELECTED = ("namespace", "pod", "job")


def read_slurm(text: str, file: str) -> JobRecords:
    """JSON of slurmrestd or ``sacct --json``, or the output of ``sacct --parsable2``."""
    return _of_json(text, file, read_slurmrestd) if text.lstrip()[:1] in "{[" else read_sacct(text, file)


def ray_parser(keys: MetadataKeys) -> RecordParser:
    """Reads JSON of Ray's dashboard."""
    return lambda text, file: _of_json(text, file, lambda document: read_ray_jobs(document, keys))


def _of_json(text: str, file: str, read: Callable[[JsonPlace], JobRecords]) -> JobRecords:
    try:
        return read(JsonPlace.parse(text, file)) if text.strip() else JobRecords()
    except InputError as error:
        return JobRecords(refused=(str(error),))


@dataclass(frozen=True)
class RecordedScheduler:
    """An inner scheduler, and where its records are."""

    scheduler: InnerScheduler
    records: RecordFolder

    def runs(self) -> KnownRuns:
        """What the files say now."""
        return self.records.runs()

    def told(self) -> InnerRecords:
        """What the files say now, in short."""
        known, rule = self.runs(), self.scheduler
        path = str(self.records.path)
        runs = len(known.runs)
        return InnerRecords(rule.cluster, rule.name, rule.kind, path, runs, known.as_of_ms, known.refused)


class InnerSource:
    """``source`` with the pods of ``schedulers`` divided. Of several that may divide a pod, the first does.
    Keeps the protocol of ``interval_source.IntervalSource``."""

    def __init__(
        self,
        source: IntervalSource,
        schedulers: Sequence[RecordedScheduler],
        catalog: ResourceCatalog | None = None,
        basis: ShareBasis = ShareBasis.COMPUTE,
    ) -> None:
        """``catalog`` and ``basis`` are those of attribution."""
        self._source = source
        self._schedulers = tuple(schedulers)
        self._catalog, self._basis = catalog, basis

    @property
    def name(self) -> str:
        return self._source.name

    def clusters(self) -> tuple[str, ...]:
        """As the source below."""
        return self._source.clusters()

    def covered(self, cluster: str) -> Window | None:
        """As the source below: windows do not wait for records."""
        return self._source.covered(cluster)

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        """As the source below, with parts of pods in place of pods. Records that are missing or wrong are
        problems and raise nothing."""
        return self._divided(self._source.read(cluster, window), cluster, window)

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        """As ``read``."""
        found = self._source.history(cluster, window, only)
        if only is not None and ALLOCATIONS.name not in only:
            return found
        return self._divided(found, cluster, window)

    def _divided(self, frames: ClusterFrames, cluster: str, window: Window) -> ClusterFrames:
        mine = [each for each in self._schedulers if each.scheduler.cluster == cluster]
        if not mine:
            return frames
        rest, problems = frames.allocations, list(frames.problems)
        sizes = UnitSizes(frames, self._catalog, self._basis)
        parts: list[FrameRow] = []
        for each in mine:
            selected = _selected(rest, each.scheduler)
            rows = _rows(rest[selected])
            rest = rest[~selected]
            divided, found = divide(rows, each.scheduler, each.runs(), window, sizes)
            parts += divided
            problems += found
        if not parts:
            return replace(frames, problems=in_order(problems))
        plain = {name: "str" for name in rest.columns if rest[name].dtype.name == "category"}
        joined = pd.concat([rest.astype(plain), frame_of(ALLOCATIONS, parts)], ignore_index=True)
        return replace(
            frames,
            allocations=conform(joined, ALLOCATIONS),
            of_pods=frames.allocations,
            problems=in_order(problems),
        )


def _selected(frame: pd.DataFrame, scheduler: InnerScheduler) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether the scheduler may divide the pod of each row. Most rows have the names of others."""
    names = frame[list(_SELECTED)].astype("str")
    known = {
        key: scheduler.selects(*key) for key in set(zip(*(names[name] for name in _SELECTED), strict=True))
    }
    return np.array(
        [known[key] for key in zip(*(names[name] for name in _SELECTED), strict=True)], dtype=np.bool_
    )


def _rows(frame: pd.DataFrame) -> list[FrameRow]:
    return list(zip(*(frame[name].tolist() for name in ALLOCATIONS.column_names), strict=True))
