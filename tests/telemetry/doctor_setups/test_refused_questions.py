"""What a server would not tell is not known, and not missing; the other questions are asked."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.domain.errors import InputError, QueryRejected, SourceUnreachable
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import DAY_MS, HOUR_MS, Month
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.reports.doctor.model import (
    DoctorFeature,
    FeatureVerdict,
)
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.query_response import QueryResponse
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings

OCTOBER = Month(2026, 10)
START, END = OCTOBER.window.start_ms, OCTOBER.window.end_ms
NOW = END + 5 * DAY_MS


class Refusing:
    """A client of a server that refuses all questions in which ``word`` stands."""

    url = "http://prometheus:9090"

    def __init__(self, word: str) -> None:
        self._word = word

    def _answer(self, expression: str) -> QueryResponse:
        if self._word in expression:
            raise QueryRejected("422: the query would load too many samples")
        return QueryResponse([])

    def query(self, expression: str, at_ms: int) -> QueryResponse:
        del at_ms
        if expression.startswith("count by (__name__"):
            labels = {"__name__": "kube_node_created"}
            return QueryResponse([{"metric": labels, "value": [0, "2"]}])
        return self._answer(expression)

    def query_range(self, expression: str, *window: int) -> QueryResponse:
        del window
        return self._answer(expression)

    raw = series = label_names = query_range

    def label_values(self, label: str, expression: str, *window: int) -> QueryResponse:
        return self.query_range(f"{label}: {expression}", *window)

    def status(self, page: str) -> dict[str, str]:
        raise SourceUnreachable(f"404: {page}")


def test_a_question_that_is_refused_is_not_known_and_the_others_are_asked() -> None:
    client: Any = Refusing("kube_pod_container_resource_requests")
    facts = probe(client, PrometheusSourceSettings(), ResourceCatalog(), OCTOBER, NOW)
    [cluster] = facts.clusters
    assert (cluster.pods, facts.retention) == (None, None)
    assert cluster.nodes is not None
    of_jobs = ["jobs of kube-state-metrics", "GPU requests of pods"]
    of_jobs += ["who gives series that are not believed", "GPUs of other makers"]
    assert [each.what for each in facts.unread] == of_jobs
    assert diagnose(facts).clusters[0].features[DoctorFeature.TEAMS].verdict is FeatureVerdict.NO


class Answering(Refusing):
    """Has one pod of a Job, one node and one GPU."""

    def query(self, expression: str, at_ms: int) -> QueryResponse:
        pod = {"namespace": "research", "pod": "train", "uid": "1", "node": "gpu-1"}
        gpu = {"resource": "nvidia_com_gpu", "node": "gpu-1"}
        rows = (
            ("kube_pod_container_resource_requests{", [{**pod, **gpu}]),
            ("kube_node_status_allocatable{", [gpu]),
            (
                "kube_pod_owner",
                [{"__name__": "kube_pod_owner", **pod, "owner_kind": "Job", "owner_name": "a"}],
            ),
        )
        if expression.startswith("count by (__name__"):
            names = ("kube_node_created", "DCGM_FI_DEV_FB_USED")
            return QueryResponse([{"metric": {"__name__": name}, "value": [0, "2"]} for name in names])
        super().query(expression, at_ms)
        found = next((labels for word, labels in rows if word in expression), [])
        return QueryResponse([{"metric": labels, "value": [0, "1"]} for labels in found])

    def query_range(self, expression: str, *window: int) -> QueryResponse:
        if expression.startswith("count by (__name__"):
            values = [[at // 1000, "1"] for at in range(START, END + 1, HOUR_MS)]
            return QueryResponse([{"metric": {"__name__": "kube_node_created"}, "values": values}])
        return super().query_range(expression, *window)


@pytest.mark.parametrize(
    ("word", "unread", "features", "not_to_do"),
    [
        ("kube_pod_start_time", "start, end, phase and owner of pods", {DoctorFeature.JOBS}, "Keep"),
        ("kube_job_owner", "owners of jobs and replica sets", {DoctorFeature.JOBS}, "Keep kube_job_owner"),
        ("kube_node_status_condition", "facts of nodes", {DoctorFeature.UNADVERTISED}, "Keep kube_node"),
        (
            "DCGM_FI_DEV_FB_USED",
            "rows of dcgm-exporter",
            {DoctorFeature.BUSY, DoctorFeature.IDLE, DoctorFeature.BROKEN},
            "Let Prometheus scrape dcgm-exporter",
        ),
    ],
)
def test_what_was_not_answered_is_not_missing(
    word: str, unread: str, features: set[DoctorFeature], not_to_do: str
) -> None:
    client: Any = Answering(word)
    facts = probe(client, PrometheusSourceSettings(), ResourceCatalog(), OCTOBER, NOW)
    assert unread in {each.what for each in facts.unread}
    diagnosis = diagnose(facts)
    assert {
        each for each in features if diagnosis.clusters[0].features[each].verdict is FeatureVerdict.UNKNOWN
    } == features
    assert not any(each.title.startswith(not_to_do) for each in diagnosis.steps)


def test_a_month_to_come_is_refused() -> None:
    client: Any = Refusing("")
    with pytest.raises(InputError, match="a month that has begun, such as 2026-11"):
        probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month(2026, 12), NOW)
