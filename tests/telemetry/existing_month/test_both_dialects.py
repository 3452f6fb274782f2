"""The same scripted month in both dialects, in real Prometheus servers: the second says what the first does.

Where it differs by more than half a percent, what it prints of its own limits must cover the difference. The
script itself, summed by plain arithmetic, is a third witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.evidence.signals import UNREAD
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import ASKED_TEXT, LABELS_TEXT, UpstreamSource
from tests.support.existing.totals import MEASURES, Key, Totals, Truth, attributed, truth_of
from tests.support.existing.variants import (
    REPLICA_LABEL,
    Variant,
    month,
    variants,
    write_first,
    write_second,
)
from tests.support.existing.world import End, Pod, at
from tests.support.prometheus import needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

SETTINGS = PrometheusSourceSettings(replica_labels=(REPLICA_LABEL,))
WAYS = {each.name: each for each in (month(4 * MINUTE_MS), *variants(2 * MINUTE_MS))}
WITHIN = 0.005
BUCKETS = (Bucket.HELD, Bucket.UNALLOCATED, Bucket.UNAVAILABLE)
GROUPS = ("team", "node", "model")
USES = tuple(measure for measure in MEASURES if measure not in ("energy_mj", "observed_ms"))
USE_LIMITS = (DataProblemCode.USE_SAMPLED, DataProblemCode.USE_DROPPED)
SHARED_NODE = "t4-1"
CUT = ("a100-1", SHARED_NODE)
"""Nodes whose GPUs several pods have a part of."""


@dataclass(frozen=True)
class Read:
    """One variant through one dialect."""

    frames: ClusterFrames
    variant: Variant

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(self.attribution)

    @cached_property
    def attribution(self):
        return attributed(self.frames, (self.variant.inner,))

    @property
    def problems(self) -> tuple[DataProblem, ...]:
        return self.attribution.problems

    def bound_ms(self, *codes: DataProblemCode) -> int:
        """The GPU time by which problems of these codes say that a sum may be off."""
        return sum(problem.board_ms or 0 for problem in self.problems if problem.code in codes)

    def bucket_ms(self, bucket: Bucket, measure: str = "board_ms") -> float:
        return self.totals.by(measure, "bucket").get((bucket.value,), 0.0)


@dataclass(frozen=True)
class Both:
    variant: Variant
    first: Read
    second: Read

    @property
    def name(self) -> str:
        return self.variant.name

    @cached_property
    def truth(self) -> Truth:
        return truth_of(self.variant.world, self.variant.inner)

    @cached_property
    def unseen(self) -> tuple[Pod, ...]:
        """Pods that no scrape of kube-state-metrics can have shown."""
        seen = set(self.second.frames.allocations["pod_uid"])
        return tuple(
            pod
            for pod in self.variant.world.pods
            if pod.uid not in seen and pod.spans(self.variant.inner.start_ms, self.variant.inner.end_ms)
        )

    @cached_property
    def slack_ms(self) -> float:
        """The most by which GPU time may differ, by what the second dialect prints: ends it did not see,
        time of which it says that it is unknown, and pods too short to be seen."""
        unknown = self.second.bucket_ms(Bucket.UNKNOWN) - self.first.bucket_ms(Bucket.UNKNOWN)
        unseen = 0.0
        if any(problem.code is DataProblemCode.SHORT_UNSEEN for problem in self.second.problems):
            unseen = sum(self.truth.held_by(0)[pod.uid,] for pod in self.unseen)
        return self.second.bound_ms(DataProblemCode.END_BOUNDED) + max(0.0, unknown) + unseen


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrometheusSource, UpstreamSource]]:
    folder = tmp_path_factory.mktemp("dialects")
    ways = tuple(WAYS.values())
    with ThreadPoolExecutor(2) as pool:
        for job in [
            pool.submit(write_second, ways, folder / "second"),
            pool.submit(write_first, ways, folder / "first"),
        ]:
            job.result()
    with ExitStack() as stack:
        urls = [stack.enter_context(running_prometheus(folder / name)) for name in ("first", "second")]
        one, other = (stack.enter_context(PrometheusClient(url)) for url in urls)
        now = at(24 * 40)
        yield (
            PrometheusSource(one, SETTINGS, now=lambda: now),
            UpstreamSource(other, SETTINGS, UpstreamSettings(), now=lambda: now),
        )


@pytest.fixture(scope="module")
def trips(sources: tuple[PrometheusSource, UpstreamSource]) -> Mapping[str, Both]:
    with ThreadPoolExecutor(2) as pool:  # two servers, two cores
        first, second = pool.map(_read_all, sources)
    return {name: Both(variant, first[name], second[name]) for name, variant in WAYS.items()}


def _read_all(source: PrometheusSource | UpstreamSource) -> dict[str, Read]:
    return {name: Read(source.read(name, variant.inner), variant) for name, variant in WAYS.items()}


@pytest.fixture(params=WAYS)
def both(request: pytest.FixtureRequest, trips: Mapping[str, Both]) -> Both:
    return trips[request.param]


def far(one: Mapping[Key, float], other: Mapping[Key, float], slack: float) -> dict[Key, tuple[float, float]]:
    """What differs by more than half a percent, and by more than ``slack``."""
    return {
        key: (one.get(key, 0.0), other.get(key, 0.0))
        for key in {*one, *other}
        if abs(one.get(key, 0.0) - other.get(key, 0.0)) > max(WITHIN * one.get(key, 0.0), slack)
    }


def test_without_use_what_is_paid_is_the_same(
    both: Both, sources: tuple[PrometheusSource, UpstreamSource], monkeypatch: pytest.MonkeyPatch
):
    """In both dialects; dcgm-exporter is asked only where labels of nodes do not tell of their GPUs."""
    asked: list[str] = []
    send = PrometheusClient._send

    def noting(self: PrometheusClient, path: str, form: Mapping[str, str] | None) -> tuple[int, bytes]:
        asked.append(f"{path} {form}")
        return send(self, path, form)

    for source, read in zip(sources, (both.first, both.second), strict=True):
        with monkeypatch.context() as patched:
            patched.setattr(source, "_settings", replace(SETTINGS, reads_use=False))
            patched.setattr(PrometheusClient, "_send", noting)
            frames = source.read(both.name, both.variant.inner)
        for name in ("allocations", "nodes", "capacity", "observed"):
            pd.testing.assert_frame_equal(getattr(frames, name), getattr(read.frames, name), obj=name)
        assert frames.signals.empty
        assert frames.progress.empty
        told = {each for each in frames.problems if each.code is DataProblemCode.USE_UNREAD}
        assert not {each.code for each in frames.problems} & {*USE_LIMITS, DataProblemCode.USE_UNSPLIT}
        assert {each.detail for each in told} >= {UNREAD}
        if LABELS_TEXT in {each.detail for each in told}:
            assert not [each for each in asked if "DCGM" in each and "query" in each.split()[0]]
        else:
            assert source is sources[0] or ASKED_TEXT in {each.detail for each in told}
        asked.clear()


@pytest.mark.trap(15, 17, 18, 28)
@pytest.mark.parametrize("measure", ["board_ms", "nano"])
def test_totals_are_within_half_a_percent(both: Both, measure: str):
    for bucket in BUCKETS:
        first, second = (read.bucket_ms(bucket, measure) for read in (both.first, both.second))
        assert second == pytest.approx(first, rel=WITHIN), bucket
    assert both.second.bucket_ms(Bucket.HELD) > 0


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_within_half_a_percent_or_the_printed_bounds(both: Both, group: str):
    first, second = (read.totals.held("board_ms", group) for read in (both.first, both.second))
    assert first.keys() == second.keys()
    assert not far(first, second, both.slack_ms)


def test_pods_differ_by_no_more_than_is_printed(both: Both):
    first, second = (read.totals.held("board_ms", "pod_uid") for read in (both.first, both.second))
    apart = far(first, second, 1)
    assert sum(abs(a - b) for a, b in apart.values()) <= both.slack_ms + 1, apart


def test_what_no_scrape_can_have_shown_is_short_and_said(both: Both):
    for pod in both.unseen:
        assert pod.gone_ms - pod.bound_ms < both.variant.scrape_ms, pod.name
    codes = {problem.code for problem in both.second.problems}
    assert not both.unseen or DataProblemCode.SHORT_UNSEEN in codes


def test_every_board_millisecond_has_one_bucket_in_each(both: Both):
    capacity = float(sum(both.truth.capacity.values()))
    for read in (both.first, both.second):
        sums = {bucket: read.bucket_ms(bucket) for bucket in Bucket if bucket.is_capacity}
        # A node's creation is exported in whole seconds: of eight GPUs.
        assert sum(sums.values()) == pytest.approx(capacity, abs=8 * SECOND_MS)
        assert not [each for each in read.problems if each.code is DataProblemCode.NOT_CONSERVED]


def test_the_script_says_the_same(both: Both):
    truth = both.truth
    unknown = both.first.bucket_ms(Bucket.UNKNOWN)
    for group, position in (("pod_uid", 0), ("team", 1), ("node", 2), ("model", 3)):
        first, second = (read.totals.held("board_ms", group) for read in (both.first, both.second))
        assert not far(truth.held_by(position), first, 1), group
        if group != "pod_uid":
            assert not far(truth.held_by(position), second, both.slack_ms), group
    assert both.first.bucket_ms(Bucket.HELD, "nano") == pytest.approx(truth.held_nano, rel=1e-6)
    assert both.second.bucket_ms(Bucket.HELD, "nano") == pytest.approx(truth.held_nano, rel=WITHIN)
    assert both.second.bucket_ms(Bucket.UNAVAILABLE) == pytest.approx(
        float(truth.unavailable), abs=2 * both.variant.scrape_ms
    )
    assert unknown <= both.second.bucket_ms(Bucket.UNKNOWN) + 1
    costs = sum(both.second.bucket_ms(bucket, "nano") for bucket in Bucket if bucket.is_capacity)
    assert costs == pytest.approx(truth.capacity_nano, rel=1e-5)


def unread_ms(both: Both) -> float:
    """Held time of which the second dialect says that it read nothing, beyond what the first says."""
    first, second = (
        sum(read.totals.by("observed_ms", "team").values()) for read in (both.first, both.second)
    )
    return max(0.0, first - second)


def use_slack_ms(both: Both) -> float:
    """The most by which use may differ by what is printed: bounds, and coverage. What the splitting of
    GPUs may have misplaced is within its own bound, below: a sum of many pods hides it."""
    unread = [each for each in both.second.problems if "arbitrary pod" in each.detail]
    return both.second.bound_ms(*USE_LIMITS) + unread_ms(both) + sum(each.board_ms or 0 for each in unread)


@pytest.mark.trap(1, 2, 4, 5, 14, 20, 22, 23, 31)
@pytest.mark.parametrize("measure", USES)
def test_use_is_within_half_a_percent_or_what_is_printed(both: Both, measure: str):
    slack = use_slack_ms(both)
    for group in GROUPS:
        first, second = (read.totals.held(measure, group) for read in (both.first, both.second))
        assert not far(first, second, slack), group
    first, second = (read.totals.held(measure, "node", "pod_uid") for read in (both.first, both.second))
    apart = {key: pair for key, pair in far(first, second, 1).items() if key[0] != SHARED_NODE}
    assert sum(abs(a - b) for a, b in apart.values()) <= slack


@pytest.mark.parametrize("measure", USES)
def test_use_in_all_is_within_half_a_percent_where_it_was_read(both: Both, measure: str):
    """Whatever was missed is not counted as idle: missing is never 0."""
    ratios = [
        sum(totals.held(measure, "node").values()) / sum(totals.held("observed_ms", "node").values())
        for totals in (_read_by_both(both, both.first), _read_by_both(both, both.second))
    ]
    assert ratios[1] == pytest.approx(ratios[0], rel=WITHIN)


def _read_by_both(both: Both, read: Read) -> Totals:
    """Lines of nodes on which the second dialect read anything."""
    nodes = {node for (node,) in both.second.totals.held("observed_ms", "node")}
    return Totals(read.totals.lines[read.totals.lines["node"].isin(nodes)])


def energy_apart(both: Both) -> dict[str, tuple[float, float]]:
    """By node: by what part its energy differs, and what part the second says that it may have missed."""
    first, second = (read.totals.held("energy_mj", "node") for read in (both.first, both.second))
    seen = [read.totals.held("energy_observed_ms", "node") for read in (both.first, both.second)]
    unsure = both.second.bound_ms(DataProblemCode.USE_SAMPLED) / sum(seen[0].values())
    return {
        key[0]: (amount / first[key] - 1, unsure + max(0.0, 1 - seen[1][key] / seen[0][key]))
        for key, amount in second.items()
    }


@pytest.mark.trap(6)
def test_energy_agrees_on_whole_boards_and_is_never_more_than_a_board_uses(both: Both):
    for node, (apart, missed) in energy_apart(both).items():
        if node in CUT:
            assert -0.6 < apart < WITHIN, node
        else:
            assert abs(apart) <= WITHIN + missed, node


@pytest.mark.trap(6, 23)
def test_energy_of_parts_of_boards_is_within_half_a_percent_or_the_printed_bound(both: Both):
    limit = split_ms(both, "energy") + both.second.bound_ms(DataProblemCode.USE_SAMPLED) + unread_ms(both)
    apart = {
        key: (one, other)
        for key, (one, other) in in_parts(both, "energy_mj").items()
        if abs(one - other) > WITHIN * one
    }
    # As time of a GPU at its mean power: what a pod was told of is by what it held.
    seen = {key: other for key, (_, other) in in_parts(both, "energy_observed_ms").items()}
    power = sum(both.second.totals.held("energy_mj", "node")[node,] for node in CUT if (node,) in nodes(both))
    power /= sum(seen.values())
    for sign in (1, -1):
        assert sum(max(0.0, sign * (one - other)) for one, other in apart.values()) / power <= limit, apart


@pytest.mark.trap(23)
@pytest.mark.parametrize("measure", USES)
def test_use_of_those_who_share_a_board_is_within_half_a_percent_or_the_printed_bound(
    both: Both, measure: str
):
    limit = split_ms(both, "busy time") + both.second.bound_ms(DataProblemCode.USE_SAMPLED) + unread_ms(both)
    pairs = in_parts(both, measure).values()
    for sign in (1, -1):
        off = sum(max(0.0, sign * (a - b)) for a, b in pairs if abs(a - b) > WITHIN * a)
        assert off <= limit


def test_only_what_was_split_is_said_to_be(trips: Mapping[str, Both]):
    both = trips["plain"]
    shared_ms = both.second.totals.held("busy_ms", "node")[SHARED_NODE,]
    assert 0 < split_ms(both, "busy time") <= shared_ms
    boards = sum(node.boards for node in both.variant.world.nodes if node.name in CUT)
    assert 0 < split_ms(both, "energy") <= boards * both.variant.inner.length_ms
    shared = sum(node.boards for node in both.variant.world.nodes if node.name == SHARED_NODE)
    assert 0 < split_ms(both, "memory") <= shared * both.variant.inner.length_ms


def in_parts(both: Both, measure: str) -> dict[Key, tuple[float, float]]:
    """By node and pod, of GPUs that are held in parts and that the second says anything of."""
    first, second = (read.totals.held(measure, "node", "pod_uid") for read in (both.first, both.second))
    return {key: (first.get(key, 0.0), amount) for key, amount in second.items() if key[0] in CUT}


def nodes(both: Both) -> set[Key]:
    return {*both.second.totals.held("energy_mj", "node")}


def split_ms(both: Both, about: str) -> int:
    """The bound that is printed for one number of what was split by what was held."""
    return sum(
        problem.board_ms or 0
        for problem in both.second.problems
        if problem.code is DataProblemCode.USE_UNSPLIT and about in problem.subject.split(", ")
    )


@pytest.mark.parametrize("hours", [1, 6, 24])
def test_windows_of_any_size_give_the_same_money(
    sources: tuple[PrometheusSource, UpstreamSource], hours: int
):
    variant, span = WAYS["plain"], Window(at(24), at(36))
    whole, _ = _money(sources[1], variant, [span])
    parts, count = _money(sources[1], variant, [*span.split(hours * HOUR_MS)])
    assert count == -(-12 // hours)
    assert parts == whole
    assert len(whole) > 10


def _money(source: UpstreamSource, variant: Variant, windows: list[Window]) -> tuple[dict[Key, float], int]:
    """GPU time by pod, node and bucket, windows read one by one; and how many there were."""
    sums: dict[Key, float] = {}
    for window in windows:
        totals = Totals.of(attributed(source.read(variant.name, window), (window,)))
        for key, amount in totals.by("board_ms", "bucket", "node", "pod_uid").items():
            sums[key] = sums.get(key, 0.0) + amount
    return sums, len(windows)


def test_owners_are_those_of_the_objects(both: Both):
    """Jobs by kind and name, through ReplicaSets to Deployments; teams by label."""
    columns = ["namespace", "pod", "job_kind", "job", "team_label", "resource", "count", "node"]
    first, second = (
        {uid: set(rows[columns].itertuples(index=False, name=None)) for uid, rows in frame.groupby("pod_uid")}
        for frame in (both.first.frames.allocations, both.second.frames.allocations)
    )
    assert second.keys() <= first.keys()
    assert {uid: second[uid] for uid in second} == {uid: first[uid] for uid in second}


@pytest.mark.trap(18)
def test_what_has_ended_holds_nothing_though_its_requests_stay(trips: Mapping[str, Both]):
    both = trips["plain"]
    held = both.second.totals.held("board_ms", "pod")
    stays = {pod.name for pod in both.variant.world.pods if pod.gone_ms - pod.end_ms > 2 * HOUR_MS}
    assert "ended-before" in stays
    assert ("ended-before",) not in held
    for pod in both.variant.world.pods:
        if pod.end is End.COMPLETED and pod.name in stays and (pod.name,) in held:
            exact = both.truth.held_by(0)[pod.uid,]
            assert held[pod.name,] == pytest.approx(exact, abs=1), pod.name


def test_a_sidecar_that_ended_first_ends_no_pod(trips: Mapping[str, Both]):
    held = trips["plain"].second.totals.held("board_ms", "pod")
    assert held["sidecar-first",] == pytest.approx(6.25 * HOUR_MS, abs=SECOND_MS)


def test_the_gap_names_the_pod_whose_end_nobody_saw(trips: Mapping[str, Both]):
    both = trips["gap"]
    unsure = {each.subject for each in both.second.problems if each.code is DataProblemCode.END_UNKNOWN}
    lost = {pod.uid for pod in both.variant.world.pods if pod.name == "lost-in-the-gap"}
    assert unsure == lost
    assert both.second.bucket_ms(Bucket.UNKNOWN) > 0


@pytest.mark.trap(23)
def test_one_arbitrary_pod_on_a_shared_board_says_nothing_of_any(trips: Mapping[str, Both]):
    both = trips["renamed"]
    details = {each.detail for each in both.second.problems if each.code is DataProblemCode.USE_UNSPLIT}
    assert any("arbitrary pod" in detail for detail in details)
    assert ("t4-1",) not in both.second.totals.held("busy_ms", "node")
    details = {
        each.detail for each in trips["plain"].second.problems if each.code is DataProblemCode.USE_UNSPLIT
    }
    assert details
    assert not any("arbitrary pod" in detail for detail in details)


def test_what_is_held_is_what_the_scheduler_counts(trips: Mapping[str, Both]):
    """All containers together, or an init container if that is more; from binding on, not from creation."""
    held = trips["plain"].second.totals.held("board_ms", "pod")
    assert held["two-boxes",] == pytest.approx(2 * 1.9 * HOUR_MS, abs=SECOND_MS)
    assert held["with-init",] == pytest.approx(2 * 3 * HOUR_MS, abs=SECOND_MS)
    assert held["waited-long",] == pytest.approx(2.5 * HOUR_MS, abs=SECOND_MS)


@pytest.mark.trap(15)
def test_a_name_used_again_is_another_pod(trips: Mapping[str, Both]):
    rows = trips["plain"].second.totals.lines
    assert rows.loc[rows["pod"] == "worker-0", "pod_uid"].nunique() == 2


def test_jobs_between_two_scrapes_are_missed_and_short_ones_that_stay_are_not(trips: Mapping[str, Both]):
    both = trips["plain"]
    held = both.second.totals.held("board_ms", "pod")
    assert {pod.name.rpartition("-")[0] for pod in both.unseen} == {"short-gone"}
    assert held["short-seen-0",] == pytest.approx(20 * SECOND_MS, abs=1)


def test_both_know_the_clusters_and_what_is_covered(sources: tuple[PrometheusSource, UpstreamSource]):
    first, second = sources
    assert second.clusters() == first.clusters() == tuple(sorted(WAYS))
    for name, variant in WAYS.items():
        covered = second.covered(name)
        assert covered is not None, name
        assert covered.intersect(variant.inner) == variant.inner, name


def test_steps_of_activity_show_the_same_use_as_the_signals(
    sources: tuple[PrometheusSource, UpstreamSource],
):
    window = Window(at(26), at(32))
    frames = sources[1].history("plain", window)
    signals, activity = (
        frame.groupby("pod_uid", observed=True)[
            ["busy_ms", "sm_active_ms", "observed_ms", "held_ms"][:n]
        ].sum()
        for frame, n in ((frames.signals, 3), (frames.activity, 4))
    )
    assert set(activity.index) == set(signals.index)
    for measure in ("busy_ms", "sm_active_ms"):
        used = [each[measure].sum() / each["observed_ms"].sum() for each in (signals, activity)]
        assert used[1] == pytest.approx(used[0], rel=0.01), measure
    # Five minutes are two and a half scrapes here: no step may lose the half.
    assert activity["observed_ms"].sum() == pytest.approx(signals["observed_ms"].sum(), rel=0.01)
    assert (activity["held_ms"] >= activity["observed_ms"] - 1).all()


def test_the_month_is_whole(trips: Mapping[str, Both]):
    inner = trips["month"].variant.inner
    assert inner.length_ms == 31 * DAY_MS
    assert len(trips["month"].variant.world.pods) > 150
