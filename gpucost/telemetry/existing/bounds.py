"""How far numbers of this dialect may be off, as problems: what is not certain is said, with its size.

Texts hold no counts, so that rows of many windows are one row, whose board time adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from gpucost.contract import kube_state as ksm
from gpucost.contract.frames import CAPACITY, NODES
from gpucost.domain.errors import InputError
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.time import Window
from gpucost.telemetry.evidence import Evidence
from gpucost.telemetry.existing.pods import Span
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.requests import PodName
from gpucost.telemetry.existing.settings import ExistingSettings
from gpucost.telemetry.existing.shards import ScrapeGroups
from gpucost.telemetry.promql import by, over_time
from gpucost.telemetry.rows import Row

Shares = Callable[[str, str], Fraction | None]
"""Node and resource -> what one unit is of a board; None where that cannot be said."""

END_TEXT = (
    "of pods that went without saying when (deleted, evicted), each is taken to have held until half-way "
    "between the last scrape that showed it and the next"
)
SHORT_TEXT = (
    "pods that were bound and deleted between two scrapes, or while kube-state-metrics was down, are not "
    "seen, and their time stands as unallocated: each for less than the distance of the scrapes"
)
CLAIMS_TEXT = (
    "pods have claims of dynamic resource allocation, and no series says which devices they got: GPUs among "
    "these are in no number"
)
_MOST = 90


def shares_of(settings: ExistingSettings, nodes: Sequence[Row], capacity: Sequence[Row]) -> Shares:
    """Of rows of frames.NODES and frames.CAPACITY."""
    product = {str(row[_NODE]): str(row[_PRODUCT]) for row in nodes}
    replicas: Mapping[tuple[str, str], int] = {
        (str(row[_HOLDER]), str(row[_RESOURCE])): int(str(row[_REPLICAS])) for row in capacity
    }

    def share(node: str, resource: str) -> Fraction | None:
        times = max(1, replicas.get((node, resource), 1))
        try:
            return settings.catalog.unit(resource, product.get(node, ""), times, settings.basis).share
        except InputError:
            return None

    return share


def bounds(
    cluster: str, groups: ScrapeGroups, spans: Iterable[Span], names: Mapping[str, PodName], shares: Shares
) -> list[Problem]:
    """Of one part that was read."""
    window = groups.evidence.window
    off = Fraction(0)
    for span in spans:
        if span.off_ms and window.start_ms < span.end_ms <= window.end_ms:
            share = shares(names[span.uid].node, span.resource)
            off += 0 if share is None else share * span.units * span.off_ms
    found = [_problem(ProblemCode.SHORT_UNSEEN, cluster, window, SHORT_TEXT + _distance(groups), None)]
    if off:
        found.append(_problem(ProblemCode.END_BOUNDED, cluster, window, END_TEXT, -int(-off // 1)))
    return found


def unread_claims(reader: ExistingReader, evidence: Evidence) -> list[Problem]:
    """A problem where any pod has a claim, as kube-state-metrics tells from 2.20 on."""
    latest = over_time("last_over_time", reader.select(ksm.RESOURCE_CLAIMS), evidence.range_ms)
    if not reader.vector(by("group", (), latest), evidence.end_ms):
        return []
    return [_problem(ProblemCode.NOT_OBSERVED, reader.cluster, evidence.window, CLAIMS_TEXT, None)]


def _distance(groups: ScrapeGroups) -> str:
    """Of most scrapes, in whole seconds; of the shard with the fewest, and of replicas the longer way."""
    apart = [np.diff(each.evidence.beats) for each in groups.groups if len(each.evidence.beats) > 1]
    if not apart:
        return ""
    return f", {max(round(float(np.percentile(each, _MOST)) / 1000) for each in apart)} s"


def _problem(code: ProblemCode, cluster: str, window: Window, text: str, board_ms: int | None) -> Problem:
    return Problem(code, cluster, "kube-state-metrics", text, board_ms, window.start_ms)


_NODE, _PRODUCT = (NODES.column_names.index(name) for name in ("node", "product"))
_HOLDER, _RESOURCE, _REPLICAS = (
    CAPACITY.column_names.index(name) for name in ("node", "resource", "replicas")
)
