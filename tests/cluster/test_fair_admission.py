"""Usage of LocalQueues under Kueue's admission fair sharing, and penalties of those that just got quota."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpucost.cluster.objects.scheduler_config import FairAdmission, KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.queues import FAIR_ADMISSION, LAST, goes_by_usage, local_usages
from tests.cluster.builders import GPU, T0, cluster_queue, condition, local_queue, pod_set, state, workload

FAIR = cluster_queue("fair", admission_mode=FAIR_ADMISSION)
HALF = FairAdmission(300_000, 300_000)
READ = KueueConfig(is_read=True, fair_admission=HALF)


def known(*more: object, weight: Fraction = Fraction(1)) -> ClusterState:
    """A queue that used 3 GPUs and half a core."""
    used = {GPU: 3000, "cpu": 500}
    mine = local_queue("mine", "fair", fair_usage=used, weight=weight)
    return state(FAIR, cluster_queue("plain"), mine, local_queue("other", "plain", fair_usage=used), *more)


@pytest.mark.parametrize(
    ("config", "mode", "expected"),
    [
        (KueueConfig(), FAIR_ADMISSION, True),
        (READ, FAIR_ADMISSION, True),
        (replace(READ, fair_admission=None), FAIR_ADMISSION, False),
        (replace(READ, gates={"AdmissionFairSharing": False}), FAIR_ADMISSION, False),
        (READ, "NoAdmissionFairSharing", False),
        (READ, "", False),
    ],
)
def test_when_a_queue_goes_by_usage(config: KueueConfig, mode: str, expected: bool) -> None:
    assert goes_by_usage(replace(FAIR, admission_mode=mode), config) is expected


def test_what_it_consumed_by_the_weights_of_resources_and_of_the_queue() -> None:
    weights = {"cpu": Fraction(4)}
    config = replace(READ, fair_admission=replace(HALF, weights=weights))
    found = local_usages(known(weight=Fraction(2)), config)
    assert found.keys() == {("team-a", "mine")}
    assert found["team-a", "mine"].order == Fraction(3000 + 4 * 500, 2)
    assert local_usages(known(weight=Fraction(0)), config)["team-a", "mine"].order == LAST
    assert local_usages(known(), replace(READ, fair_admission=None)) == {}


def test_who_has_quota_and_is_not_admitted_is_charged_a_part_at_once() -> None:
    """Half of 2 pods with 4 GPUs and a core each; who is admitted is part of what was consumed."""
    pods = pod_set("main", 2, 4, cpu=1000)
    enters, runs = (
        workload(
            name, pods, queue="mine", cluster_queue="fair", flavor="h100", admitted_ms=T0, namespace="team-a"
        )
        for name in ("enters", "runs")
    )
    enters = replace(enters, conditions={"QuotaReserved": condition(True)})
    [found] = local_usages(known(enters, runs), READ).values()
    assert found.penalty == {GPU: 4000, "cpu": 1000}
    assert found.consumed == {GPU: 3000, "cpu": 500}
    assert found.order == 3500 + 5000
    [unread] = local_usages(known(enters), KueueConfig()).values()
    assert (unread.penalty, unread.order) == (None, 3500)
    [all_at_once] = local_usages(known(enters), replace(READ, fair_admission=FairAdmission(0))).values()
    assert all_at_once.penalty == {GPU: 0, "cpu": 0}
