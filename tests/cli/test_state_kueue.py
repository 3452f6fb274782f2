"""What ``gpucost state show`` says of usage that orders queues, and of workloads in other clusters."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from io import StringIO

import pytest
from rich.console import Console

from gpucost.cli.state.screen import print_screen
from gpucost.cluster.objects.kueue import AdmissionCheck, AdmissionCheckState
from gpucost.cluster.objects.scheduler_config import FairAdmission, KueueConfig, SchedulerConfigs
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import FAIR_ADMISSION
from gpucost.cluster.views.workload_families import CONTROLLER
from gpucost.reports.live.state_document import as_data
from gpucost.reports.live.state_facts import StateFacts, StateFilter, facts, narrowed
from tests.cluster.builders import (
    GPU,
    MINUTE,
    T0,
    cluster_queue,
    condition,
    local_queue,
    meta,
    pod_set,
    state,
    workload,
)

READ = KueueConfig(is_read=True, fair_admission=FairAdmission(300_000, 300_000))


def told(config: KueueConfig = READ) -> StateFacts:
    """Two LocalQueues of a ClusterQueue that goes by usage, and three workloads of one that sends elsewhere.
    ``enters`` has quota for 4 GPUs and is not admitted: half of them is its penalty."""
    pods = pod_set("main", 2, 2)
    enters = workload(
        "enters", pods, queue="mine", cluster_queue="fair", flavor="h100", admitted_ms=T0, namespace="team-a"
    )
    reserved = {"QuotaReserved": condition(True)}
    ways = {"seeks": {}, "waits": {"nominated": ("west", "east")}, "runs": {"on_cluster": "w\x1best"}}
    sent = [
        workload(
            name,
            pods,
            queue="far",
            cluster_queue="far",
            flavor="h100",
            admitted_ms=T0,
            rest={"checks": (AdmissionCheckState("mk", "Pending"),), **way},
        )
        for name, way in ways.items()
    ]
    sent[:2] = [replace(each, conditions=reserved) for each in sent[:2]]
    found = state(
        cluster_queue("fair", admission_mode=FAIR_ADMISSION),
        cluster_queue("far", checks={"mk": ()}),
        local_queue("mine", "fair", fair_usage={GPU: 3000, "memory": 2**30 * 1000}, weight=Fraction(2)),
        local_queue("idle", "fair"),
        local_queue("far", "far"),
        replace(enters, conditions=reserved),
        *sent,
        at_ms=T0 + 90 * MINUTE,
        checks=[AdmissionCheck(meta("mk", ""), CONTROLLER)],
    )
    return facts(ClusterOverview(replace(found, schedulers=SchedulerConfigs(config))))


def screen(found: StateFacts) -> str:
    text = StringIO()
    print_screen(found, Console(file=text, width=140, force_terminal=False))
    return text.getvalue()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (READ, "fair 2. team-a/mine (weight 2): used 1Gi memory and 3 nvidia.com/gpu lately, and 2 "
         "nvidia.com/gpu of who just got quota"),
        (KueueConfig(), "fair 2. team-a/mine (weight 2): used 1Gi memory and 3 nvidia.com/gpu lately, "
         "penalties not known"),
        (replace(READ, fair_admission=None), ""),
    ],
)  # fmt: skip
def test_who_comes_first_by_usage(config: KueueConfig, says: str) -> None:
    text = screen(told(config))
    assert says in text
    assert ("fair 1. team-a/idle: used nothing lately" in text) is bool(says)
    assert ("Who comes first by usage" in text) is bool(says)


def test_where_a_workload_of_the_manager_is_on_its_way() -> None:
    text = screen(told())
    assert "In other clusters (MultiKueue): 3 jobs with quota for 12 GPUs" in text
    lines = [line.strip() for line in text.splitlines()]
    assert "team-a/seeks of far: waits until clusters are named, 4 GPUs, 1h30m" in lines
    assert "team-a/waits of far: waits for one of the clusters east, west, 4 GPUs, 1h30m" in lines
    assert any(line.startswith("team-a/runs of far: runs on cluster w") for line in lines)
    assert "\x1b" not in text


def test_the_data_has_both() -> None:
    data = as_data(told())
    assert json.loads(json.dumps(data)) == data
    [idle, mine] = data["usage"]
    assert (mine["order"], mine["penalty"], mine["place"]) == ((3 + 2**30 + 2) / 2, {GPU: 2.0}, 2)
    assert (idle["order"], idle["used"]) == (0, None)
    assert [each["stage"] for each in data["sent"]] == ["assigned", "seeking", "nominated"]


def test_filters_narrow_both() -> None:
    assert [each.workload for each in narrowed(told(), StateFilter(job="waits")).sent] == ["waits"]
    assert narrowed(told(), StateFilter(job="waits")).usage == []
    assert len(narrowed(told(), StateFilter(queue="fair")).usage) == 2
