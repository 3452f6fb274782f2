"""Series of gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.cluster.views.gangs import PodGang
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector.pod_series import SPECS, GangStalls, write_gang
from tests.cluster.builders import GPU, T0
from tests.exporters.queue.series import HOSTILE, TAMED, lines, read_back

GANG = PodGang(
    GangKind.POD_GROUP,
    "team-a",
    "train",
    "pg-uid",
    JobReference(JobKind.VOLCANO_JOB, "train", "vj-uid"),
    "research",
    min_members=4,
    running=3,
    pending=1,
    succeeded=0,
    held={GPU: 24},
    is_partial=True,
    partial_since_ms=T0 + 1,
)
_WHO = '{namespace="team-a",gang="train",gang_uid="pg-uid",gang_kind="pod_group"'


def test_a_partial_gang() -> None:
    assert lines(SPECS, write_gang(GANG)) == [
        f'gang_info{_WHO},job_kind="VolcanoJob",job_name="train",job_uid="vj-uid",queue="research"}} 1.0',
        f"gang_min_members{_WHO}}} 4.0",
        f"gang_running_members{_WHO}}} 3.0",
        f"gang_pending_members{_WHO}}} 1.0",
        f'gang_held_units{_WHO},resource="nvidia.com/gpu"}} 24.0',
        f"gang_partial_since_timestamp_seconds{_WHO}}} 1792800000.001",
    ]


def test_one_that_holds_nothing_and_is_whole() -> None:
    found = lines(SPECS, write_gang(replace(GANG, held={}, running=0, partial_since_ms=None)))
    assert [each.partition("{")[0] for each in found] == [
        "gang_info",
        "gang_min_members",
        "gang_running_members",
        "gang_pending_members",
    ]
    assert found[2].endswith(" 0.0")


def stall(since_ms: int | None, was_whole: bool = False) -> PodGang:
    return replace(GANG, partial_since_ms=since_ms, was_whole=was_whole)


WHOLE = replace(GANG, is_partial=False, partial_since_ms=None)


@pytest.mark.parametrize(
    ("why", "seen", "expected"),
    [
        ("the loss is forgotten", [stall(60, True), stall(None), stall(None)], [60, 60, 60]),
        ("and looks like an early stall", [stall(60, True), stall(5)], [60, 60]),
        ("a successor comes", [stall(60, True), stall(61)], [60, 60]),
        ("lost anew after it was whole", [stall(60, True), stall(90, True)], [60, 90]),
        ("nothing said since when", [stall(None), stall(None)], [1000, 1000]),
        ("nothing said, an end is told later", [stall(None), stall(60, True)], [1000, 1000]),
        ("nothing said, a successor comes", [stall(None), stall(1003)], [1000, 1000]),
        ("whole in between", [stall(60, True), WHOLE, stall(None)], [60, None, 1002]),
        ("gone in between", [stall(60, True), None, stall(None)], [60, None, 1002]),
    ],
)
def test_while_it_is_partial_its_since_stays(
    why: str, seen: list[PodGang | None], expected: list[int | None]
) -> None:
    stalls, other = GangStalls(), replace(WHOLE, uid="other")
    found = []
    for seconds, each in enumerate(seen):
        now = stalls.find([other] if each is None else [other, each], 1000 + seconds)
        assert now["other"] is other
        found.append(now[GANG.uid].partial_since_ms if each is not None else None)
    assert found == expected, why


def test_hostile_names_come_back_as_they_were() -> None:
    job = JobReference(JobKind.JOB, HOSTILE, HOSTILE)
    gang = replace(GANG, namespace=HOSTILE, name=HOSTILE, uid=HOSTILE, job=job, queue=HOSTILE)
    read = read_back(SPECS, write_gang(gang))
    assert len(read) == len(SPECS)
    assert all([each[key] for key in ("namespace", "gang", "gang_uid")] == [TAMED] * 3 for each in read)
    assert [read[0][key] for key in ("job_name", "job_uid", "queue")] == [TAMED] * 3
