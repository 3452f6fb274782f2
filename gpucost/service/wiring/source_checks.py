"""Checks of a source that make no window: series of untrusted jobs, and a trial reading, which attributes the
last minutes of a cluster as a report does, to show what one would contain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.probe import TrialReading
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode, NotCovered
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.service.ingest.batch_reader import attribute_windows
from gpucost.service.wiring.pipeline import rules_of
from gpucost.service.wiring.prometheus_connection import build_client, existing_options, source_options
from gpucost.telemetry.prometheus.trust import kinds_read, strangers

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gpucost.attribution.teams import TeamRules
    from gpucost.contract.probe import ForeignJob
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.settings.model import Settings
    from gpucost.telemetry.upstream.upstream_source import UpstreamSource


SPAN_MS = 30 * MINUTE_MS
_MIG = "nvidia.com/mig-"
_NAMED = {"team": "team_label", "project": "project", "user": "user", "queue": "queue"}
_MEASURED = {
    "busy": "observed_ms",
    "sm": "sm_observed_ms",
    "tensor": "tensor_observed_ms",
    "memory": "memory_observed_ms",
    "energy": "energy_observed_ms",
}


def build_strangers(
    settings: Settings, now: Callable[[], int], stopped: threading.Event
) -> Callable[[str], Sequence[ForeignJob]]:
    """Scrape jobs whose series in the last hour are not trusted, by cluster; the function raises SourceError.
    None in a recording."""
    found = settings.prometheus
    if settings.source.path is not None:
        return lambda cluster: ()  # noqa: ARG005  a recording has no jobs
    # Imported here, since only the service needs it.
    from gpucost.telemetry.upstream.kube_reader import KubeStateReader

    client, options = build_client(found, stopped=stopped, attempts=1), source_options(found)

    def look(cluster: str) -> Sequence[ForeignJob]:
        until = now()
        window = Window(until - HOUR_MS, until)
        reader = KubeStateReader(client, options, cluster, window, existing_options(settings))
        return strangers(reader, window, kinds_read(reader, found.dialect))

    return look


def build_trial(
    settings: Settings, book: PriceBook, teams: TeamRules, *, attempts: int | None = None
) -> Callable[[str, int], TrialReading | None]:
    """What a report says of the minutes of a cluster before an instant, for ``gpucost doctor``; the function
    raises SourceError."""
    # Imported here, since only the doctor needs it.
    from gpucost.telemetry.upstream.upstream_source import UpstreamSource

    client = build_client(settings.prometheus, attempts=attempts)
    options = replace(source_options(settings.prometheus, book.label_names), history_ms=DAY_MS)
    rules = rules_of(settings, book, teams)

    def read(cluster: str, at_ms: int) -> TrialReading | None:
        at = replace(options, as_of_ms=at_ms)
        source = UpstreamSource(client, at, existing_options(settings), now=lambda: at_ms)
        return read_trial(source, cluster, lambda frames, span: attribute_windows(frames, [span], rules))

    return read


def read_trial(
    source: UpstreamSource, cluster: str, attributed: Callable[[ClusterFrames, Window], Attribution]
) -> TrialReading | None:
    """The result for the latest minutes that can be read; None if no minute can. Raises what ``source.read``
    raises."""
    covered = source.covered(cluster)
    if covered is None:
        return None
    window = Window(max(covered.start_ms, covered.end_ms - SPAN_MS), covered.end_ms)
    try:
        frames = source.read(cluster, window)
    except NotCovered:
        return None
    return summed(frames, attributed(frames, window))


def summed(frames: ClusterFrames, attribution: Attribution) -> TrialReading:
    """The totals of the trial: GPU milliseconds, and numbers of nodes and pods."""
    lines = attribution.flat()
    is_over = lines["bucket"] == Bucket.OVERCOMMITTED.value
    held = lines[lines["bucket"] == Bucket.HELD.value]
    capacity = lines[~is_over]
    unpriced = capacity[capacity["rate_id"] == ""].groupby("model")["board_ms"].sum()
    unknown = {p.subject for p in attribution.problems if p.code is DataProblemCode.UNIT_UNKNOWN}
    handed_out = frames.capacity[frames.capacity[["capacity", "allocatable"]].max(axis=1) > 0]
    sized = set(frames.nodes.loc[frames.nodes["boards"] >= 0, "node"])
    whole = handed_out[~handed_out["resource"].str.startswith(_MIG)]
    uncounted = set(handed_out.loc[handed_out["expected"] < 0, "node"])
    nodes = {*frames.nodes["node"], *frames.capacity["node"]}
    return TrialReading(
        held_ms=int(held["board_ms"].sum()),
        unpriced={str(model): int(ms) for model, ms in unpriced.items() if ms},
        doubted={
            p.subject: p.detail for p in attribution.problems if p.code is DataProblemCode.PRICE_DOUBTFUL
        },
        capacity_ms=int(capacity["board_ms"].sum()),
        over_ms=int(lines.loc[is_over, "board_ms"].sum()),
        unshared_pods=len(unknown & {*frames.allocations["pod_uid"]}),
        named={name: _time(held, held[column] != "") for name, column in _NAMED.items()},
        measured={name: int(held[column].sum()) for name, column in _MEASURED.items()},
        nodes=len(nodes),
        unsized_nodes=len({*whole["node"]} - sized),
        counted_nodes=len(nodes - uncounted),
    )


def _time(lines: pd.DataFrame, chosen: pd.Series[bool]) -> int:
    return int(lines.loc[chosen, "board_ms"].sum())
