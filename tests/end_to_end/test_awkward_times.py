"""Shared GPUs, Slurm in pods and maintenance at awkward times: within a scrape, at hours, across nodes."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, iso
from gpucost.service.settings.inner_schedulers import InnerSchedulerSettings
from gpucost.service.wiring.source import recorded_scheduler
from gpucost.telemetry.inner.inner_source import InnerSource
from gpucost.telemetry.interval_source import IntervalSource
from tests.end_to_end.fixture_cluster import CLUSTER, START_MS, BilledCluster, ClusterScript, rounded
from tests.end_to_end.test_shared_claims import a_slice, claim
from tests.end_to_end.test_shared_claims import node as device_node
from tests.support.cluster import shapes
from tests.support.objects import condition
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.slow, needs_prometheus, pytest.mark.prometheus]

GPU, MIG, DRIVER = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "gpu.nvidia.com"
BY_CLASS = f"deviceclass.resource.kubernetes.io/{DRIVER}"
HOURS = 3
NODE_SET = ("slinky.slurm.net/v1beta1", "NodeSet", "w", "nodeset-uid")


def ms(minute: int, second: int = 0) -> int:
    return START_MS + minute * MINUTE_MS + second * SECOND_MS


def hours(minutes: int, seconds: int = 0) -> Fraction:
    return Fraction(minutes, 60) + Fraction(seconds, 3600)


def pod(
    namespace: str, name: str, node: str, at: tuple[int, int] = (0, 0), *, through: str = "", **units: Any
) -> dict[str, Any]:
    """Bound at a minute and second, with ``resource`` and ``count``, or ``through`` a claim."""
    resource, count = units.get("resource", "cpu"), units.get("count", 1)
    owner = NODE_SET if namespace == "slurm" else None
    found = shapes.pod(namespace, name, f"{name}-uid", ms(*at), resource, count, owner=owner)
    if through:
        found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": through}]
    found["spec"]["nodeName"] = node
    found["status"]["phase"] = "Running"
    shapes.set_condition(found, "PodScheduled", True, "", ms(*at))
    return found


def over(found: dict[str, Any], minute: int, second: int = 0) -> dict[str, Any]:
    ended = iso(ms(minute, second))
    done = shapes.terminated(0, "Completed", found["metadata"]["creationTimestamp"], ended)
    return {**found, "status": {**found["status"], "phase": "Succeeded", "containerStatuses": done}}


def node(
    name: str, resource: str, count: int, gpus: int, *told: tuple[str, int], cordoned: bool = False
) -> Any:
    labels = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": str(gpus)}
    if resource == MIG:
        labels |= {"nvidia.com/mig.strategy": "mixed", f"{MIG}.count": str(count)}
    found = shapes.node(name, START_MS - 600_000, {resource: count}, labels)
    found["spec"] = {"unschedulable": True} if cordoned else {}
    found["status"]["conditions"] += [condition(type_, since=iso(ms(minute))) for type_, minute in told]
    return found


JOBS = [
    ("200", "COMPLETED", ms(45, 10), ms(80, 40), "g[1-2]", 6),
    ("201", "COMPLETED", ms(60), ms(90), "g1", 3),
    ("202", "REQUEUED", ms(0), ms(20), "g1", 2),
    ("202", "REQUEUED", ms(0), ms(20), "g1", 2),
    ("202", "COMPLETED", ms(30), ms(40), "g2", 2),
    ("203+0", "COMPLETED", ms(120), ms(150), "g1", 1),
    ("203+1", "COMPLETED", ms(120), ms(150), "g2", 2),
    ("300", "COMPLETED", ms(60), ms(120), "g3", 6),
]


def around(source: IntervalSource, folder: Path) -> IntervalSource:
    lines = ["JobID|User|Account|State|Start|End|NodeList|AllocTRES"]
    for key, state, start, end, nodes, gpus in JOBS:
        lines.append(f"{key}|u|red|{state}|{start // 1000}|{end // 1000}|{nodes}|gres/gpu={gpus},mem=64G")
    records = folder / "sacct.txt"
    records.write_text("\n".join(lines))
    os.utime(records, (ms(240) // 1000,) * 2)
    names: dict[str, Any] = {"pods": "w-(.+)", "node_name": r"\1"}
    slurm = InnerSchedulerSettings(
        name="slinky", kind="slurm", path=records, namespace="slurm", cluster=CLUSTER, **names
    )
    return InnerSource(source, [recorded_scheduler(slurm)])


def script() -> ClusterScript:
    """For three hours; all times are minutes and seconds after the start.

    s1  x has 20 of 80 Gi until 120:00, y 30 Gi from 10:07 to 10:48 between two scrapes, z 60 Gi from 59:50 to
        60:20 over the hour: 1/4 x 2 h, 3/8 x 41 s, 3/4 x 30 s
    s2  one claim: c0 from 0:00 and c1 from 30:20 to 60:00, c2 from then on; c0 and c2 end at 90:15, when d0
        takes the device by a claim of its own. c0 30:20 + 59:55 / 2, c1 29:40 / 2, c2 30:15 / 2, d0 89:45
    m   4 GPUs, of which p has two until 120:00. Drained from 20:00 on with p on it, not cordoned, in
        maintenance from 60:00 to 150:00. Scrapes at half past: unavailable are 2 x 99:30 + 4 x 30:30
    g1, g2, g3  Slurm has 4 GPUs, 4 GPUs until 135:30, 4 of 7 slices of one GPU
        200    3 + 3 from 45:10 to 80:40, over the hour and two nodes
        201    3 on g1 from 60:00 to 90:00: 1 is left until 80:40; 2 x 20:40 are beyond
        202    2 on g1 for 20:00 (twice on record), requeued, 2 on g2 for 10:00
        203+0  1 on g1, 203+1  2 on g2, from 120:00 to 150:00: g2 is gone at 135:30, 2 x 14:30 are nowhere
        300    6 slices for 60:00 where 4 are: 4/7 GPU-hours, 2/7 are beyond
    two One pod, one claim for nvidia.com/gpu and for two GPUs by the name of their class: 3 of 4, 3 h each
    """
    made = ClusterScript(HOURS, around=around)
    for name in ("s1", "s2"):
        made.at(-5, device_node(name, 1), a_slice(name, 1))
    x, y = pod("blue", "x", "s1", through="x"), pod("red", "y", "s1", (10, 7), through="y")
    z = pod("red", "z", "s1", (59, 50), through="z")
    made.at(0, claim("x", "blue", "s1", "x", memory="20Gi"), x)
    made.at(10, claim("y", "red", "s1", "y", memory="30Gi"), y)
    made.at(11, over(y, 10, 48))
    made.remove(11, y, claim("y", "red", "s1"))
    made.at(60, claim("z", "red", "s1", "z", memory="60Gi"), z)
    made.at(61, over(z, 60, 20))
    made.at(120, over(x, 120))

    c0, c1 = pod("blue", "c0", "s2", through="c"), pod("blue", "c1", "s2", (30, 20), through="c")
    c2, d0 = pod("blue", "c2", "s2", (60, 0), through="c"), pod("red", "d0", "s2", (90, 15), through="d")
    made.at(0, claim("c", "blue", "s2", "c0", share=False), c0)
    made.at(31, claim("c", "blue", "s2", "c0", "c1", share=False), c1)
    made.at(60, over(c1, 60), claim("c", "blue", "s2", "c0", "c2", share=False), c2)
    made.at(91, over(c0, 90, 15), over(c2, 90, 15), claim("d", "red", "s2", "d0", share=False), d0)
    made.remove(92, claim("c", "blue", "s2"), c0, c2)

    p = pod("blue", "p", "m", resource=GPU, count=2)
    made.at(-5, node("m", GPU, 4, 4))
    made.at(0, p)
    made.at(20, node("m", GPU, 4, 4, ("Drained", 20)))
    made.at(60, node("m", GPU, 4, 4, ("Drained", 20), ("MaintenanceInProgress", 60), cordoned=True))
    made.at(120, over(p, 120))
    made.at(150, node("m", GPU, 4, 4))

    made.at(-5, node("n1", GPU, 4, 4), node("n2", GPU, 4, 4), node("n3", MIG, 7, 1))
    second = pod("slurm", "w-g2", "n2", resource=GPU, count=4)
    made.at(0, pod("slurm", "w-g1", "n1", resource=GPU, count=4), second)
    made.at(0, pod("slurm", "w-g3", "n3", resource=MIG, count=4))
    made.at(136, over(second, 135, 30))
    _two(made)
    return made


def _two(made: ClusterScript) -> None:
    made.at(-5, device_node("two", 4), a_slice("two", 4))
    found = pod("red", "both", "two", resource=GPU, count=1)
    amounts = {GPU: "1", BY_CLASS: "2"}
    found["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    mappings = [
        {"containerName": "main", "resourceName": resource, "requestName": f"r{n}"}
        for n, resource in enumerate(amounts)
    ]
    found["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "made",
        "requestMappings": mappings,
    }
    given = claim("made", "red", "two", "both", share=False)
    given["status"]["allocation"]["devices"]["results"] = [
        {"request": request, "driver": DRIVER, "pool": "two", "device": f"gpu-{n}"}
        for n, request in enumerate(("r0", "r1", "r1"))
    ]
    made.at(0, given, found)


def test_the_objects_are_valid() -> None:
    script().validate()


HELD = {
    ("s1", "x"): Fraction(1, 4) * 2,
    ("s1", "y"): Fraction(3, 8) * hours(0, 41),
    ("s1", "z"): Fraction(3, 4) * hours(0, 30),
    ("s2", "c0"): hours(30, 20) + hours(59, 55) / 2,
    ("s2", "c1"): hours(29, 40) / 2,
    ("s2", "c2"): hours(30, 15) / 2,
    ("s2", "d0"): hours(89, 45),
    ("m", "p"): Fraction(4),
    ("n1", "slurm/200"): 3 * hours(35, 30),
    ("n2", "slurm/200"): 3 * hours(35, 30),
    ("n1", "slurm/201"): hours(20, 40) + 3 * hours(9, 20),
    ("n1", "slurm/202"): 2 * hours(20),
    ("n2", "slurm/202"): 2 * hours(10),
    ("n1", "slurm/203+0"): hours(30),
    ("n2", "slurm/203+1"): 2 * hours(15, 30),
    ("n3", "slurm/300"): Fraction(4, 7),
    ("n1", "w"): 12 - (3 * hours(35, 30) + hours(20, 40) + 3 * hours(9, 20) + 2 * hours(20) + hours(30)),
    ("n2", "w"): 4 * hours(135, 30) - (3 * hours(35, 30) + 2 * hours(10) + 2 * hours(15, 30)),
    ("n3", "w"): 2 * Fraction(4, 7),
    ("two", "both"): Fraction(9),
}


def test_what_pods_and_jobs_hold(bill: BilledCluster) -> None:
    found: dict[tuple[str, str], Fraction] = {}
    for (at, name, job), held in bill.held("node", "pod", "job").items():
        key = at, job if at.startswith("n") else name
        found[key] = found.get(key, Fraction(0)) + held
    assert found == rounded(HELD)


def test_it_is_conserved_on_every_node(bill: BilledCluster) -> None:
    unavailable = 2 * hours(99, 30) + 4 * hours(30, 30)
    gpus = {"s1": 1, "s2": 1, "m": 4, "n1": 4, "n2": 4, "n3": 1, "two": 4}
    of_node = dict.fromkeys(gpus, Fraction(0))
    for row in bill.lines:
        of_node[row["node"]] += Fraction(int(row["board_ms"]), HOUR_MS)
    assert of_node == {name: count * HOURS for name, count in gpus.items()}
    buckets = bill.buckets()
    assert buckets["unavailable"] == unavailable
    assert set(buckets) == {"held", "unavailable", "unallocated"}
    assert sum(buckets.values()) == sum(gpus.values()) * HOURS
    assert sum(bill.cost("team").values()) == pytest.approx(float(buckets["held"] * Fraction(5, 2)))


def test_problems_in_the_report_are_in_gpu_hours(bill: BilledCluster) -> None:
    assert {each.code for each in bill.report.problems} == {DataProblemCode.INNER_UNPLACED}
    found = sorted(Fraction(each.board_ms or 0, HOUR_MS) for each in bill.report.problems)
    expected = sorted([2 * hours(20, 40), 2 * hours(14, 30), Fraction(2, 7)])
    assert found == pytest.approx([float(each) for each in expected], rel=0, abs=2 / HOUR_MS)
