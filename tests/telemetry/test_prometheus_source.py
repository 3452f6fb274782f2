"""PrometheusSource against a real Prometheus: the evidence rule, and that windows of any size agree."""

from __future__ import annotations

from itertools import groupby

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.gpu_metrics import POD_BUSY, POD_OBSERVED
from gpucost.contract.metrics import NODE_LABEL_PREFIX
from gpucost.domain.errors import DataProblemCode, NotCovered
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import ProgressMetric, PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.support.history import T0, History, Node, Pod, at, counted, openmetrics_of
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

DAY = Window(T0, T0 + DAY_MS)
MS = 123
GAP = (at(10) + 1, at(11.5))
WINDOW_SIZES = (15 * MINUTE_MS, HOUR_MS, DAY_MS)
_PLAIN_HOURS = (0, 1, 3, 4, 5, 6, 8)
EVENTFUL_HOURS = {
    "plain": _PLAIN_HOURS,
    "gap": (0, 2, 9, 10, 11, 13, 14),
    "odd": (1, 2, 3, 4, 5, 6, 7, 9),
    "stale": (1, 3, 6, 8),
    "nonsense": (5, 6, 7),
    "nodes": (2, 3, 4, 5, 6, 7, 8, 9, 11, 12),
    "ha": (*_PLAIN_HOURS, 2, 7),
    "relabelled": (*_PLAIN_HOURS, 2),
    "moved-target": _PLAIN_HOURS,
}
"""By cluster, those in which anything begins, ends or changes, or which end with that."""


def plain_pods() -> list[Pod]:
    return [
        Pod("exact", at(1) + MS, at(3) + 2 * MS),
        Pod("short", at(4) + 5 * SECOND_MS, at(4) + 41 * SECOND_MS),  # between two scrapes
        Pod("running", at(5) + 1),
        Pod("old", T0 - 3 * DAY_MS, at(0.5), units=2),
        Pod("eight", at(6), at(8.25), units=8, node="n2"),
    ]


def gap_pods() -> list[Pod]:
    return [
        Pod("across", at(9) + MS, at(13) + MS),
        Pod("ended-in-gap", at(9), at(11.5) - 4 * MINUTE_MS + 7),
        Pod("began-in-gap", at(11) + 9, at(14)),
        Pod("within-gap", at(11.45), at(11.49)),
        Pod("lost-in-gap", at(9.5), gone=at(10.5)),
        Pod("vanished", at(2), gone=at(2.5)),
        Pod("running", at(0.25)),
    ]


def odd_pods() -> list[Pod]:
    return [
        Pod("node-lost", at(2), at(5), learned_end=at(7), node="n2"),
        Pod("learned-late", at(2), at(5), learned_end=at(5) + 2 * MINUTE_MS),
        Pod("found-late", at(2), at(9), hidden=((at(2), at(4)),)),
        Pod("hidden", at(1), at(9), hidden=((at(3), at(4)),)),
        Pod("blinks", at(1), at(9), hidden=((at(3), at(3) + 2 * MINUTE_MS),)),
        Pod("resized", at(1), at(9), units=1, units_from={at(4) + 30 * SECOND_MS: 4}),
        Pod("moved", at(1), at(9), owners={at(3) + 1: {"owner_team": "a"}, at(6): {"owner_team": "b"}}),
        Pod("orphan", at(1), at(2), has_owner=False),
    ]


NONSENSE = [
    Pod("ends-first", at(6), at(7), claimed_end=at(5)),
    Pod("future-start", at(6), at(7), claimed_start=at(6) + 400 * DAY_MS),
    Pod("future-end", at(6), at(7), claimed_end=at(7) + 400 * DAY_MS),
    Pod("year-1970", at(6), at(7), claimed_start=0),
    Pod("late-clock", at(6), at(7), claimed_end=at(7) + 45 * MINUTE_MS),
    Pod("sane", at(6), at(7)),
]


def histories() -> list[History]:
    ha = plain_pods()
    relabelled = plain_pods()
    nodes = [
        Node("n1", labels={"label_example_com_tier": "gold", "provider_id": "aws:///eu-1a/i-1"}),
        Node("n2", start=at(2) + 500, end=at(9) + 700),
        Node("cordoned", changes={at(3): {"schedulable": 0}, at(4): {"schedulable": 1}}),
        Node("broken", changes={at(5): {"units": 7}, at(6) + 1: {"units": 8}}),
        Node("sliced", changes={at(7): {"resource": "nvidia.com/mig-1g.10gb", "units": 56}}),
        Node("gone", gone=at(12)),
        Node("swapped", changes={at(8): {"product": "NVIDIA-H200"}}),
    ]
    counters = [
        counted(spec, "running", value, now)
        for now in range(at(5), at(9), MINUTE_MS)
        for spec, value in ((POD_OBSERVED, (now - at(5)) / 1000), (POD_BUSY, (now - at(5)) / 4000))
    ]
    return [
        History("plain", plain_pods(), extra=counters),
        History("gap", gap_pods(), down=(GAP,)),
        History("odd", odd_pods()),
        History("stale", [Pod("kept", at(1), gone=at(6)), Pod("on", at(1))], stale=((at(3), at(8)),)),
        History("nonsense", NONSENSE),
        History("nodes", [], nodes, down=((at(20), at(21)),)),
        History("ha", ha, extra=counters, target={"replica": "a"}, down=((at(2), at(4)),)),
        History(
            "ha", ha, extra=counters, target={"replica": "b"}, offset=20 * SECOND_MS, down=((at(6), at(7.5)),)
        ),
        History("twice", plain_pods(), extra=counters, target={"instance": "one"}),
        History("twice", plain_pods(), extra=counters, target={"instance": "two"}, offset=20 * SECOND_MS),
        History("relabelled", relabelled, renamed={at(2) + 1: ("pod", "node", "namespace")}),
        History("moved-target", plain_pods(), target={"instance": "one"}, end=at(6.5)),
        History("moved-target", plain_pods(), target={"instance": "two"}, start=at(6.5) + MINUTE_MS),
        History("idle", [], end=at(6)),
        History("", [Pod("nameless", at(1), at(2))], end=at(6)),
        History('x"} or vector(1) #', [Pod("quoted", at(1), at(2))], end=at(3)),
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    data = tmp_path_factory.mktemp("prometheus") / "data"
    create_blocks(openmetrics_of(*histories()), data)
    with running_prometheus(data) as address:
        yield address


@pytest.fixture
def source(url: str):
    with PrometheusClient(url) as client:
        yield make_source(client)


def make_source(client: PrometheusClient, **settings: object) -> PrometheusSource:
    settings = {"replica_labels": ("replica",), **settings}
    return PrometheusSource(client, PrometheusSourceSettings(**settings), now=lambda: T0 + 10 * DAY_MS)


def held(frames: ClusterFrames) -> dict[str, int]:
    """Unit-milliseconds per pod uid."""
    allocations = frames.allocations
    time = (allocations["end_ms"] - allocations["start_ms"]) * allocations["count"]
    return {uid: int(total) for uid, total in time.groupby(allocations["pod_uid"]).sum().items()}


def windows(cluster: str, size_ms: int) -> list[Window]:
    """The day in windows of this size in the hours in which something happens; each quiet stretch is one."""
    if size_ms == DAY_MS:
        return [DAY]
    found: list[Window] = []
    hours = range(DAY_MS // HOUR_MS)
    for is_eventful, group in groupby(hours, lambda hour: hour in EVENTFUL_HOURS[cluster]):
        first, *others = group
        stretch = Window(at(first), at(first + len(others) + 1))
        found += stretch.split(size_ms) if is_eventful else [stretch]
    return found


def held_in_windows(source: PrometheusSource, cluster: str, size_ms: int) -> dict[str, int]:
    totals: dict[str, int] = {}
    for window in windows(cluster, size_ms):
        for uid, total in held(source.read(cluster, window)).items():
            totals[uid] = totals.get(uid, 0) + total
    return totals


PLAIN_HELD = {
    "exact": 2 * HOUR_MS + MS,
    "short": 36 * SECOND_MS,
    "running": 19 * HOUR_MS - 1,
    "old": HOUR_MS,
    "eight": 18 * HOUR_MS,
}


@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_pods_are_held_to_the_millisecond_in_windows_of_any_size(
    source: PrometheusSource, size_ms: int
) -> None:
    assert held_in_windows(source, "plain", size_ms) == PLAIN_HELD


@pytest.mark.fault(26)
@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_a_gap_is_filled_by_timestamps_only(source: PrometheusSource, size_ms: int) -> None:
    assert held_in_windows(source, "gap", size_ms) == {
        "across": 4 * HOUR_MS,
        "ended-in-gap": round(2.5 * HOUR_MS) - 4 * MINUTE_MS + 7,
        "began-in-gap": 3 * HOUR_MS - 9,
        "within-gap": round(0.04 * HOUR_MS),
        "lost-in-gap": HOUR_MS // 2,  # until the last scrape before the gap, then not known
        "vanished": HOUR_MS // 2 - MINUTE_MS,  # until the last scrape that showed it
        "running": round(23.75 * HOUR_MS),
    }


@pytest.mark.fault(26)
def test_a_gap_is_not_observed_and_the_lost_pod_is_named(source: PrometheusSource) -> None:
    frames = source.read("gap", DAY)
    observed = frames.observed[["start_ms", "end_ms"]].to_numpy().tolist()
    assert observed == [[T0, at(10)], [at(11.5), T0 + DAY_MS]]
    assert [(p.code, p.subject) for p in frames.problems] == [(DataProblemCode.END_UNKNOWN, "lost-in-gap")]


@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_timestamps_that_scrapes_contradict_are_believed_within_the_lateness(
    source: PrometheusSource, size_ms: int
) -> None:
    late = 5 * MINUTE_MS
    assert held_in_windows(source, "odd", size_ms) == {
        "node-lost": 5 * HOUR_MS - MINUTE_MS - late,  # seen running until 06:59
        "learned-late": 3 * HOUR_MS,
        "found-late": 5 * HOUR_MS + MINUTE_MS + late,  # not there at 03:59
        "hidden": 7 * HOUR_MS + late,  # 02:59 to 03:54 not held
        "blinks": 8 * HOUR_MS,
        "resized": 3 * HOUR_MS + MINUTE_MS + 4 * (5 * HOUR_MS - MINUTE_MS),
        "moved": 8 * HOUR_MS,
        "orphan": HOUR_MS,
    }


@pytest.mark.fault(30)
def test_labels_split_a_pod_at_the_first_scrape_that_shows_them(source: PrometheusSource) -> None:
    rows = source.read("odd", DAY).allocations.query("pod_uid == 'moved'")
    assert rows[["team_label", "start_ms", "end_ms"]].to_numpy().tolist() == [
        ["", at(1), at(3) + MINUTE_MS],
        ["a", at(3) + MINUTE_MS, at(6)],
        ["b", at(6), at(9)],
    ]
    hourly = [source.read("odd", window).allocations for window in DAY.split(HOUR_MS)]
    teams = {
        (team, uid) for part in hourly for team, uid in zip(part["team_label"], part["pod_uid"], strict=True)
    }
    assert {team for team, uid in teams if uid == "moved"} == {"", "a", "b"}


def test_a_pod_without_owner_series_keeps_its_name(source: PrometheusSource) -> None:
    row = source.read("odd", DAY).allocations.query("pod_uid == 'orphan'").iloc[0]
    assert (row["namespace"], row["pod"], row["node"], row["job"]) == ("ns", "pod-orphan", "n1", "")


@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_a_stale_heartbeat_is_a_gap_whatever_else_was_scraped(source: PrometheusSource, size_ms: int) -> None:
    assert held_in_windows(source, "stale", size_ms) == {
        "kept": 2 * HOUR_MS - MINUTE_MS,
        "on": 23 * HOUR_MS,
    }
    assert len(source.read("stale", DAY).observed) == 2


@pytest.mark.fault(29)
@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_clock_nonsense_is_refused_or_held_as_seen(source: PrometheusSource, size_ms: int) -> None:
    minute, late = MINUTE_MS, 5 * MINUTE_MS
    assert held_in_windows(source, "nonsense", size_ms) == {
        "ends-first": HOUR_MS - minute,  # as long as it was seen running
        "future-end": HOUR_MS - minute,
        "late-clock": HOUR_MS + late,
        "sane": HOUR_MS,
    }


@pytest.mark.fault(29)
def test_clock_nonsense_is_named(source: PrometheusSource) -> None:
    frames = source.read("nonsense", DAY)
    assert {p.code for p in frames.problems} == {DataProblemCode.INTERVAL_REFUSED}
    assert {p.subject for p in frames.problems} == {pod.uid for pod in NONSENSE} - {"sane"}
    assert (frames.allocations["end_ms"] > frames.allocations["start_ms"]).all()


@pytest.mark.fault(27)
@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_an_ha_pair_gives_what_one_replica_gives(source: PrometheusSource, size_ms: int) -> None:
    assert held_in_windows(source, "ha", size_ms) == PLAIN_HELD
    frames = source.read("ha", DAY)
    assert frames.problems == ()
    assert len(frames.observed) == 1


@pytest.mark.fault(27)
def test_two_unmarked_collectors_are_counted_once_and_named(source: PrometheusSource) -> None:
    frames = source.read("twice", DAY)
    assert held(frames) == PLAIN_HELD
    assert [p.code for p in frames.problems] == [DataProblemCode.DUPLICATE_SOURCE]
    assert "replica_labels" in frames.problems[0].detail


@pytest.mark.fault(30)
@pytest.mark.parametrize("cluster", ["relabelled", "moved-target"])
@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_series_that_change_their_labels_stay_one_subject(
    source: PrometheusSource, cluster: str, size_ms: int
) -> None:
    assert held_in_windows(source, cluster, size_ms) == PLAIN_HELD
    frames = source.read(cluster, DAY)
    assert frames.problems == ()
    assert set(frames.allocations["node"]) == {"n1", "n2"}
    assert set(frames.nodes["node"]) == {"n1"}
    assert len(frames.nodes) == len(frames.capacity) == 1


def test_capacity_changes_at_the_first_scrape_that_shows_it(source: PrometheusSource) -> None:
    frames = source.read("nodes", DAY)
    columns = ["start_ms", "end_ms", "capacity", "schedulable"]
    found = {
        node: rows[columns].to_numpy().tolist() for node, rows in frames.capacity.groupby("node", sort=True)
    }
    end = T0 + DAY_MS
    assert found == {
        "n1": [[T0, end, 8, 1]],
        "n2": [[at(2) + 500, at(9) + 700, 8, 1]],
        "cordoned": [[T0, at(3), 8, 1], [at(3), at(4), 8, 0], [at(4), end, 8, 1]],
        "broken": [[T0, at(5), 8, 1], [at(5), at(6) + MINUTE_MS, 7, 1], [at(6) + MINUTE_MS, end, 8, 1]],
        "sliced": [[T0, at(7), 8, 1], [at(7), end, 56, 1]],
        "gone": [[T0, at(12) - MINUTE_MS, 8, 1]],
        "swapped": [[T0, end, 8, 1]],
    }
    sliced = frames.capacity.query("node == 'sliced'")["resource"].tolist()
    assert sliced == ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]
    swapped = frames.nodes.query("node == 'swapped'")
    assert swapped["product"].tolist() == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]
    assert swapped["start_ms"].tolist() == [T0, at(8)]
    assert set(frames.nodes["boards"]) == {8}


def test_node_labels_come_back_under_their_own_names(url: str) -> None:
    with PrometheusClient(url) as client:
        frames = make_source(client, node_labels=("example.com/tier", "zone")).read("nodes", DAY)
    nodes = frames.nodes
    assert frames.provider_ids == {("n1", "aws:///eu-1a/i-1")}
    labels = dict(zip(nodes["node"], nodes["labels"], strict=True))
    assert (labels["n1"], labels["gone"]) == ('{"example.com/tier": "gold"}', "{}")


@pytest.mark.parametrize("size_ms", WINDOW_SIZES)
def test_capacity_is_the_same_in_windows_of_any_size(source: PrometheusSource, size_ms: int) -> None:
    def total(frames: ClusterFrames) -> int:
        rows = frames.capacity
        return int(((rows["end_ms"] - rows["start_ms"]) * rows["capacity"] * (1 + rows["schedulable"])).sum())

    whole = total(source.read("nodes", DAY))
    assert sum(total(source.read("nodes", window)) for window in windows("nodes", size_ms)) == whole


@pytest.mark.fault(28)
def test_time_outside_the_sources_memory_is_refused(source: PrometheusSource) -> None:
    assert source.covered("plain") == Window(T0, T0 + DAY_MS + 55 * MINUTE_MS)
    with pytest.raises(NotCovered, match="holds no heartbeat"):
        source.read("plain", Window(T0 - HOUR_MS, T0))
    with pytest.raises(NotCovered, match="holds no heartbeat"):
        source.read("plain", Window(T0 - 30 * DAY_MS, T0 + DAY_MS))
    with pytest.raises(NotCovered, match="not yet complete"):
        source.read("plain", Window(T0 + DAY_MS, T0 + DAY_MS + HOUR_MS))


@pytest.mark.fault(28)
def test_an_idle_cluster_is_covered_and_an_unknown_one_is_not(source: PrometheusSource) -> None:
    frames = source.read("idle", Window(T0, at(5)))
    assert frames.allocations.empty
    assert len(frames.observed) == len(frames.capacity) == 1
    assert source.covered("no such cluster") is None
    with pytest.raises(NotCovered):
        source.read("no such cluster", Window(T0, at(5)))


@pytest.mark.fault(51)
def test_clusters_are_found_and_hostile_names_stay_literal(source: PrometheusSource) -> None:
    hostile = 'x"} or vector(1) #'
    assert {"default", "plain", hostile} <= set(source.clusters())
    assert held(source.read("default", Window(T0, at(3)))) == {"nameless": HOUR_MS}
    assert held(source.read(hostile, Window(T0, at(2.5)))) == {"quoted": HOUR_MS}


@pytest.mark.fault(25)
def test_a_window_longer_than_the_span_is_read_in_parts(url: str) -> None:
    with PrometheusClient(url) as client:
        in_parts = make_source(client, max_span_ms=2 * HOUR_MS).read("gap", DAY)
        whole = make_source(client).read("gap", DAY)
    for name in ("allocations", "nodes", "capacity", "observed"):
        left, right = (
            getattr(frames, name).sort_values(["start_ms", "end_ms"]).astype(str).to_numpy().tolist()
            for frames in (in_parts, whole)
        )
        assert sorted(left) == sorted(right), name
    assert in_parts.problems == whole.problems


@pytest.mark.fault(27)
@pytest.mark.parametrize("cluster", ["plain", "ha", "twice"])
def test_signals_are_rises_per_step_and_missing_ones_are_null(source: PrometheusSource, cluster: str) -> None:
    signals = source.read(cluster, DAY).signals
    assert set(signals["pod_uid"]) == {"running"}
    hours = signals.set_index("start_ms").loc[[at(6), at(7)]]
    assert hours["observed_ms"].tolist() == pytest.approx([HOUR_MS, HOUR_MS])
    assert hours["busy_ms"].tolist() == pytest.approx([HOUR_MS / 4, HOUR_MS / 4])
    assert hours["sm_observed_ms"].isna().all()
    assert source.read("gap", DAY).signals.empty


def test_progress_is_joined_by_pod_name_or_uid(url: str) -> None:
    named = ProgressMetric("seconds", POD_BUSY.name)
    by_uid = ProgressMetric("by uid", POD_BUSY.name, pod_label="pod_uid", namespace_label="")
    with PrometheusClient(url) as client:
        source = make_source(client, progress=(named, by_uid))
        progress = source.read("plain", Window(at(6), at(7))).progress
    assert progress["name"].tolist() == ["seconds", "by uid"]
    assert set(progress["pod_uid"]) == {"running"}
    assert progress["amount"].tolist() == pytest.approx([900, 900], rel=0.02)


def test_few_queries_are_sent_and_their_time_is_told(source: PrometheusSource) -> None:
    source.read("plain", DAY)
    # Six for memory, four hours each; seven for counters: labels, how many, two readings, starts, falls;
    # five for whom to believe: jobs, and of either exporter its heartbeats and targets; one for exporters of
    # other makers' GPUs and one for claims that are not known, of which there are none; one for machines; one
    # for what servers count and one for counters that pods name.
    assert source.stats.queries <= 14 + 6 + 7 + 5 + 1 + 1 + 1 + 2
    assert source.stats.series > 0
    assert source.stats.query_seconds > 0
    assert NODE_LABEL_PREFIX not in source.name
