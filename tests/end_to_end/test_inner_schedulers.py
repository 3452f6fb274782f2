"""Slurm and Ray in pods: their jobs are billed in place of the pods, the rest stays with the pods' holder."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.service.settings.inner_schedulers import InnerSchedulerSettings
from gpucost.service.wiring.source import recorded_scheduler
from gpucost.telemetry.inner.inner_source import InnerSource
from gpucost.telemetry.interval_source import IntervalSource
from tests.end_to_end.fixture_cluster import CLUSTER, START_MS, BilledCluster, ClusterScript
from tests.support.cluster import shapes
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU = "nvidia.com/gpu"
HOURS = 4
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
NODE_SET = ("slinky.slurm.net/v1beta1", "NodeSet", "slurm-worker", "nodeset-uid")
RAY = ("ray.io/v1", "RayCluster", "lab", "lab-uid")
TEAMS = """
version: 1
rules:
  - {namespace: [slurm, ray], team_from: team_label}
  - {namespace: [slurm, ray], team: platform}
  - {team_from: namespace}
"""


def at_s(minute: int) -> int:
    return (START_MS + minute * MINUTE_MS) // 1000


def pod(namespace: str, name: str, node: str, units: int, minute: int, owner: Any) -> dict[str, Any]:
    at_ms = START_MS + minute * MINUTE_MS
    found = shapes.pod(namespace, name, f"{namespace}-{name}-uid", at_ms, GPU, units, owner=owner)
    found["spec"]["nodeName"] = node
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", at_ms)
    return found


SLURM_JOBS = [
    ("101", "alice", "red", "COMPLETED", at_s(30), at_s(150), "gpu-01", 3),
    ("102_7", "bob", "blue", "RUNNING", at_s(60), "Unknown", "gpu-01", 4),
    ("103", "carol", "blue", "COMPLETED", at_s(60), at_s(120), "gpu-02", 2),
    ("104", "dan", "red", "CANCELLED by 0", at_s(120), at_s(180), "gpu-[01]", 4),
    ("105", "alice", "red", "NODE_FAIL", at_s(180), "Unknown", "gpu-01", 1),
]


def sacct() -> str:
    """As ``SLURM_TIME_FORMAT=%s sacct --parsable2 --allusers`` writes it, with the steps of the first job."""
    lines = ["JobID|User|Account|State|Start|End|NodeList|AllocTRES"]
    for key, user, account, state, start, end, nodes, gpus in SLURM_JOBS:
        tres = f"billing=8,cpu=8,gres/gpu:h100={gpus},gres/gpu={gpus},mem=64G,node=1"
        lines.append(f"{key}|{user}|{account}|{state}|{start}|{end}|{nodes}|{tres}")
    lines.insert(2, f"101.batch||red|COMPLETED|{at_s(30)}|{at_s(150)}|gpu-01|cpu=8,gres/gpu=3,mem=64G,node=1")
    return "\n".join(lines) + "\n"


def ray_jobs() -> str:
    def job(key: str, user: str, team: str, gpus: str, start: int, end: int | None) -> dict[str, Any]:
        return {
            "type": "SUBMISSION",
            "submission_id": f"raysubmit_{key}",
            "status": "SUCCEEDED" if end else "RUNNING",
            "entrypoint": "python train.py",
            "start_time": at_s(start) * 1000,
            "end_time": None if end is None else at_s(end) * 1000,
            "metadata": {"user": user, "team": team, "num_gpus": gpus},
        }

    return json.dumps(
        [
            job("erin", "erin", "green", "1", 90, 180),
            job("frank", "frank", "gold", "2", 120, None),
            job("grace", "grace", "red", "1", 60, 120),
        ]
    )


def around(source: IntervalSource, folder: Path) -> IntervalSource:
    records = {"slurm": ("sacct.txt", sacct()), "ray": ("jobs.json", ray_jobs())}
    for kind, (name, text) in records.items():
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / name).write_text(text)
        written_s = at_s(60 * HOURS + 30)
        os.utime(folder / kind / name, (written_s, written_s))
    slurm = InnerSchedulerSettings(
        name="slinky",
        kind="slurm",
        path=folder / "slurm",
        namespace="slurm",
        cluster=CLUSTER,
        pods="slurm-worker-(.+)",
        node_name=r"\1",
    )
    ray = InnerSchedulerSettings(
        name="lab",
        kind="ray",
        path=folder / "ray" / "jobs.json",
        namespace="ray",
        owners="lab",
        teams=("green", "gold"),
    )
    return InnerSource(source, [recorded_scheduler(slurm), recorded_scheduler(ray)])


def script() -> ClusterScript:
    """Two nodes, for four hours.

    big   8 GPUs, all of the pod of the Slurm node gpu-01: 32 h. By Slurm
          101    alice, red: 3 GPUs from 0:30 to 2:30: 6 h
          102_7  bob, blue: 4 from 1:00 on, still running at 4:30: 12 h
          103    carol, blue: 2 on gpu-02, which is no pod, from 1:00 to 2:00: a problem of 2 h
          104    dan, red: 4 from 2:00 to 3:00, but 8 - 3 - 4 = 1 is left until 2:30: 0.5 + 2 h, and a problem
                 of 3 x 0.5 = 1.5 h
          105    alice, red: 1 from 3:00 on, over without an end: a problem of 1 h, and with the pod
          the rest is the pod's: 32 - 6 - 12 - 2.5 = 11.5 h
    lab   6 GPUs. The head of the Ray cluster has 4 from 1:00 on: 12 h. By Ray
          erin   green: 1 from 1:30 to 3:00: 1.5 h
          frank  gold: 2 from 2:00 on: 4 h
          grace  says red, which jobs of this cluster may not: a problem of 1 h, and with the pod
          the rest is the pod's: 12 - 5.5 = 6.5 h
          A pod of the tenant rogue is called like the Slurm node: 2 GPUs, 8 h, its own
    """
    teams = TeamRules.parse(TEAMS, "teams.yaml")
    made = ClusterScript(HOURS, teams=teams, around=around)
    made.at(
        -5, *(shapes.node(name, START_MS - 600_000, {GPU: n}, LABELS) for name, n in (("big", 8), ("lab", 6)))
    )
    made.at(0, pod("slurm", "slurm-worker-gpu-01", "big", 8, 0, NODE_SET))
    made.at(0, pod("rogue", "slurm-worker-gpu-01", "lab", 2, 0, NODE_SET))
    made.at(60, pod("ray", "lab-head", "lab", 4, 60, RAY))
    return made


def test_the_objects_are_valid() -> None:
    script().validate()


def test_each_job_has_its_gpus_and_the_pod_the_rest(bill: BilledCluster) -> None:
    assert bill.held("namespace", "job", "user") == {
        ("slurm", "slurm/101", "alice"): 6,
        ("slurm", "slurm/102_7", "bob"): 12,
        ("slurm", "slurm/104", "dan"): Fraction(5, 2),
        ("slurm", "slurm-worker", ""): Fraction(23, 2),
        ("ray", "ray/raysubmit_erin", "erin"): Fraction(3, 2),
        ("ray", "ray/raysubmit_frank", "frank"): 4,
        ("ray", "lab", ""): Fraction(13, 2),
        ("rogue", "slurm-worker", ""): 8,
    }


def test_every_team_is_in_the_report(bill: BilledCluster) -> None:
    expected = {"red": 8.5, "blue": 12, "green": 1.5, "gold": 4, "platform": 18, "rogue": 8}
    told = {team.row.group["team"]: team.row.held.board_ms / HOUR_MS for team in bill.report.teams}
    assert told == expected
    assert bill.cost("team") == {
        (team,): Fraction(hours) * Fraction(5, 2) for team, hours in expected.items()
    }


def test_it_is_conserved(bill: BilledCluster) -> None:
    """14 GPUs for four hours, of which 4 are free in the first."""
    assert bill.buckets() == {"held": 52, "unallocated": 4}
    assert bill.held("node", "pod") == {
        ("big", "slurm-worker-gpu-01"): 32,
        ("lab", "lab-head"): 12,
        ("lab", "slurm-worker-gpu-01"): 8,
    }


def test_what_is_not_known_or_cannot_be_is_a_problem_with_its_time(bill: BilledCluster) -> None:
    found = {(each.code, each.subject, each.detail): each.board_ms for each in bill.problems}
    beyond = "jobs on gpu-01 had more GPUs than its pods held: what is beyond is charged to nobody"
    nowhere = "jobs had GPUs of the node gpu-02, and no pod that it may divide held any then"
    not_theirs = "jobs of Ray name teams that its records may not name: theirs is the pod's"
    no_end = "jobs on gpu-01 have no end on record: what they may have had since is the pod's"
    assert found == {
        (DataProblemCode.INNER_UNPLACED, "slinky", beyond): 3 * HOUR_MS // 2,
        (DataProblemCode.INNER_UNPLACED, "slinky", nowhere): 2 * HOUR_MS,
        (DataProblemCode.INNER_UNPLACED, "lab", not_theirs): HOUR_MS,
        (DataProblemCode.END_UNKNOWN, "slinky", no_end): HOUR_MS,
    }


def test_detectors_see_pods_and_not_their_jobs(bill: BilledCluster) -> None:
    held = bill.history.of_pods
    assert held is not None
    assert dict(zip(held["pod"] + "/" + held["namespace"], held["count"], strict=True)) == {
        "slurm-worker-gpu-01/slurm": 8,
        "slurm-worker-gpu-01/rogue": 2,
        "lab-head/ray": 4,
    }
