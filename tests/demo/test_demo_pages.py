"""What the demo's exporters say at an instant, without any other program."""

from __future__ import annotations

from collections import defaultdict

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpucost.demo.chat import ChatRoom
from gpucost.demo.exporters import COLLECTOR_JOB, GPU_JOB, SERVERS_JOB, SimulatedExporters
from gpucost.demo.full import cluster_around, span_around
from gpucost.demo.incident import JOB, NODE, UNITS, IdleIncident
from gpucost.demo.stack import MetricBackfill
from gpucost.domain.time import DAY_MS, MINUTE_MS

AT_MS = 1_790_838_000_000


@pytest.fixture(scope="module")
def exporters() -> SimulatedExporters:
    cluster = cluster_around(AT_MS)
    incident = IdleIncident.on(cluster.seed, cluster.window.start_ms, cluster.window.end_ms)
    incident.begin(AT_MS)
    incident.end(AT_MS + 5 * MINUTE_MS)
    return SimulatedExporters(cluster, incident)


@pytest.mark.slow
def test_holders_and_what_is_retired_are_the_gpus_counters(exporters: SimulatedExporters) -> None:
    """The contract's own promise, to the last bit, which simulated pages keep as well."""
    left: dict[tuple[str, str], float] = defaultdict(float)
    for target, page in exporters.pages(AT_MS):
        if target.job != GPU_JOB:
            continue
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                uuid = sample.labels.get("gpu_uuid", "")
                if sample.name == "gpucost_gpu_present_seconds_total":
                    left[uuid, "held_seconds"] += sample.value
                elif sample.name == "gpucost_gpu_sm_active_seconds_total":
                    left[uuid, "sm_active_seconds"] += sample.value
                elif sample.name == "gpucost_gpu_retired_total":
                    left[uuid, sample.labels["measure"]] -= sample.value
                elif sample.name.startswith("gpucost_pod_gpu_") and "holder" in sample.labels:
                    left[uuid, sample.name[len("gpucost_pod_gpu_") : -len("_total")]] -= sample.value
    checked = {key: rest for key, rest in left.items() if key[1] in ("held_seconds", "sm_active_seconds")}
    assert len(checked) > 100
    assert set(checked.values()) == {0.0}


@pytest.mark.parametrize(("after_ms", "held", "ended"), [(MINUTE_MS, UNITS, 0), (6 * MINUTE_MS, 0, 1)])
def test_the_incident_is_there_until_it_ends(
    exporters: SimulatedExporters, after_ms: int, held: int, ended: int
) -> None:
    pages = {(target.job, target.instance): page for target, page in exporters.pages(AT_MS + after_ms)}
    (collected,) = (page for (job, _), page in pages.items() if job == COLLECTOR_JOB)
    (node,) = (page for (_, instance), page in pages.items() if instance.startswith(NODE))
    shares = [line for line in node.splitlines() if line.startswith("gpucost_pod_gpu_share") and JOB in line]
    ends = [line for line in collected.splitlines() if "gpu_end_timestamp" in line and JOB in line]
    assert (len(shares), len(ends)) == (held, ended)


def test_servers_count_their_requests_and_nobody_elses_pods(exporters: SimulatedExporters) -> None:
    """What a pod counted in half an hour is what the simulator says, within the steps at its ends."""
    counted = list[dict[str, float]]()
    from_ms, to_ms = AT_MS + 10 * MINUTE_MS, AT_MS + 40 * MINUTE_MS
    for at_ms in (from_ms, to_ms):
        (page,) = (page for target, page in exporters.pages(at_ms) if target.job == SERVERS_JOB)
        (family,) = text_string_to_metric_families(page)
        counted.append({each.labels["pod"]: each.value for each in family.samples})
    frames = exporters.cluster.frames
    held = frames.allocations.drop_duplicates("pod_uid", keep="last").set_index("pod_uid")
    rows = frames.serving.assign(pod=frames.serving["pod_uid"].astype("str").map(held["pod"]))
    rows = rows[(rows["start_ms"] >= from_ms) & (rows["end_ms"] <= to_ms)]
    truth = rows.groupby("pod")["requests"].sum()
    assert len(counted[1]) > 10
    assert set(held.loc[[*held["pod"].isin(counted[1])], "job"]) >= {"asr", "embedder", "feed-ranker"}
    for pod, value in counted[1].items():
        assert value - counted[0].get(pod, 0.0) == pytest.approx(truth.get(pod, 0.0), abs=1)


def test_the_cluster_stands_on_for_a_week() -> None:
    assert span_around(AT_MS).end_ms > AT_MS + 7 * DAY_MS


def test_pages_get_times_and_the_labels_of_their_target() -> None:
    backfill = MetricBackfill()
    page = '# TYPE a gauge\na{x="1",y="",z="q=\\"\\""} 2.0\n# EOF\n'
    backfill.add(page, {"job": "j"}, 1_500)
    assert list(backfill.text()) == [
        "# TYPE a gauge\n",
        'a{job="j",x="1",z="q=\\"\\""} 2.0 1.500\n',
        "# TYPE up gauge\n",
        'up{job="j"} 1 1.500\n',
        "# EOF\n",
    ]


def test_the_chat_page_escapes_what_was_posted() -> None:
    room = ChatRoom("secret")
    first = room.post({"text": "<script>alert(1)</script>"})
    room.post({"text": "answer", "thread_ts": first.id})
    room.update({"ts": first.id, "text": "<b>done</b>"})
    page = room.page()
    assert "&lt;b&gt;done&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "changed 1 times" in page
    assert "secret" not in page
