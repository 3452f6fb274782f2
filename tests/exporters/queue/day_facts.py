"""Who takes part in the scripted day, and its truth, written by hand."""

from __future__ import annotations

from typing import Any

from tests.exporters.queue.day_truth import (
    CapacityTruth,
    Check,
    GangTruth,
    PodTruth,
    Truth,
    Wait,
    WorkloadTruth,
    at,
)
from tests.support.cluster.kueue_actor import Training
from tests.support.cluster.volcano_actor import Gang

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"

TRAIN = Training("train", "team-a", "alpha", 2, 4)
EVAL = Training("eval", "team-a", "alpha", 1, 4)
TUNE = Training("tune", "team-a", "alpha", 1, 4)
SWEEP = Training("sweep", "team-b", "beta", 2, 4, kind="JobSet")
LLM = Training("llm", "team-b", "beta", 2, 4, kind="PyTorchJob")
NIGHTLY = Training("nightly", "team-b", "beta", 1, 4)
URGENT = Training("urgent", "team-b", "beta", 1, 2, priority=100)
SLICES = Training("slices", "team-b", "beta", 1, 2, flavor="a100-mig", resource=SLICE, pool="mig")
FOLD = Training("fold", "team-c", "gamma", 2, 4)
GANG = Gang("allreduce", "hpc", "hpc", 4, 2)


def _run(training: Training, run: int, node: str, start: str, end: str, **more: Any) -> tuple[PodTruth, ...]:
    """The pods of one run of a job."""
    return tuple(
        PodTruth(
            f"{training.name}-{index}-run{run}",
            training.namespace,
            training.pod_name(index),
            node,
            training.resource,
            training.units,
            at(start),
            at(end),
            **more,
        )
        for index in range(training.pods)
    )


def _plain(
    uid: str, node: str, start: str, end: str, *, name: str = "", namespace: str = "lab", **more: Any
) -> PodTruth:
    """A pod of its own, of one shared GPU on the sliced node unless ``more`` says otherwise."""
    held = (more.pop("resource", SHARED), more.pop("units", 1))
    return PodTruth(uid, namespace, name or uid, node, *held, at(start), at(end) if end else None, **more)


def _member(uid: str, index: int, start: str, end: str) -> PodTruth:
    return PodTruth(uid, "hpc", GANG.pod_name(index), "gpu-4", GPU, 2, at(start), at(end))


OUTAGE = (at("13:00:00"), at("13:20:00"))
GAP = (at("14:59:59"), at("15:10:00"))

PODS = (
    *_run(TRAIN, 1, "gpu-1", "01:00:03", "04:00:00"),
    *_run(SWEEP, 1, "gpu-2", "01:30:03", "05:30:00"),
    *_run(LLM, 1, "gpu-3", "02:05:03", "03:00:06"),
    *_run(LLM, 2, "gpu-2", "05:30:03", "13:10:06", unseen=OUTAGE, in_outage=True),
    *_run(LLM, 3, "gpu-3", "16:30:03", "20:00:00"),
    *_run(NIGHTLY, 1, "gpu-2", "13:10:11", "18:00:00"),
    *_run(URGENT, 1, "gpu-1", "04:00:03", "22:00:00"),
    *_run(SLICES, 1, "gpu-5", "12:30:05", "16:00:00"),
    *_run(FOLD, 1, "gpu-3", "03:00:09", "16:30:00"),
    *_run(EVAL, 1, "gpu-1", "10:10:02", "21:30:00"),
    *_run(TUNE, 1, "gpu-2", "13:10:09", "23:00:00"),
    *(_member(f"allreduce-{index}", index, "06:40:05", "20:30:00") for index in range(3)),
    _member("allreduce-3", 3, "06:40:05", "08:30:00"),
    _member("allreduce-3b", 3, "09:15:03", "20:30:00"),
    _plain("greedy", "gpu-4", "08:30:00", "09:15:00", namespace="hpc", resource=GPU, units=2),
    _plain("web-0", "gpu-6", "00:10:01", "", name="web-7d9f-0", namespace="serving"),
    _plain("web-1", "gpu-6", "00:10:01", "", name="web-7d9f-1", namespace="serving"),
    _plain("notebook", "gpu-5", "00:20:02", "06:20:00", resource=SLICE),
    _plain("blip", "gpu-6", "07:00:00", "07:00:03"),
    _plain("burst", "gpu-6", "11:30:00", "12:00:00"),
    _plain("ghost", "gpu-6", "12:10:00", "13:07:00", unseen=OUTAGE, in_outage=True),
    _plain("done", "gpu-6", "12:10:00", "13:08:00"),
    _plain("late", "gpu-6", "13:05:00", "15:30:00"),
    _plain("stuck", "gpu-6", "14:00:00", "14:45:00.250"),
    _plain("cell-first", "gpu-6", "14:30:00", "15:03:00.400", name="cell", unseen=GAP),
    _plain("cell-second", "gpu-6", "15:03:05", "18:30:00", name="cell"),
    _plain("ping", "gpu-6", "17:00:00", "17:00:40"),
    _plain("pong", "gpu-6", "19:00:00", "19:20:00"),
)


def _workload(
    training: Training, finished: str, *waits: tuple[str, ...], preempted: int = 0
) -> WorkloadTruth:
    return WorkloadTruth(
        training.uid,
        training.namespace,
        training.workload,
        training.cluster_queue,
        training.resource,
        training.pods * training.units,
        tuple(Wait(*map(at, each)) for each in waits),
        at(finished),
        {"Preempted": preempted} if preempted else {},
    )


WORKLOADS = (
    _workload(TRAIN, "04:00:00", ("01:00:00", "01:00:02", "01:00:02")),
    _workload(SWEEP, "05:30:00", ("01:30:00", "01:30:01", "01:30:01")),
    _workload(
        LLM,
        "20:00:00",
        ("02:05:00", "02:05:02", "02:05:02", "03:00:01", "03:00:07"),
        ("03:00:01", "05:30:02", "05:30:02", "13:10:01", "13:10:07"),
        ("13:10:01", "16:30:02", "16:30:02"),
        preempted=2,
    ),
    _workload(NIGHTLY, "18:00:00", ("02:30:00", "13:10:10", "13:10:10")),
    _workload(URGENT, "22:00:00", ("02:40:00", "04:00:02", "04:00:02")),
    _workload(SLICES, "16:00:00", ("10:45:00", "10:45:01", "10:45:01")),
    _workload(FOLD, "16:30:00", ("03:00:00", "03:00:08", "03:00:08")),
    _workload(EVAL, "21:30:00", ("10:10:00", "10:10:01", "10:10:01")),
    _workload(TUNE, "23:00:00", ("13:10:00", "13:10:08", "13:10:08")),
)

GANGS = (
    GangTruth("hpc", GANG.group, "podgroup-allreduce", 4, ((at("08:30:00"), at("09:15:03")),)),
    *(
        GangTruth(each.namespace, each.workload, each.uid, each.pods, ())
        for each in (TRAIN, SWEEP, LLM, FOLD)
    ),
)

CAPACITY = (
    *(CapacityTruth(f"gpu-{index}", GPU, at("00:00:00"), 8, 8, 8) for index in (1, 2, 3, 4)),
    CapacityTruth("gpu-4", GPU, at("21:00:00"), None, None, None),
    CapacityTruth("gpu-5", SLICE, at("00:00:00"), 16, 16, 16),
    CapacityTruth("gpu-5", SLICE, at("10:30:00"), 16, 0, 16),
    CapacityTruth("gpu-5", SLICE, at("10:35:00"), 0, 0, 16),
    CapacityTruth("gpu-5", SLICE, at("12:30:00"), 16, 16, 16),
    CapacityTruth("gpu-6", SHARED, at("00:00:00"), 32, 32, 32),
)


def _check(
    clock: str,
    alpha: tuple[int, int],
    beta: tuple[int, int],
    gamma: tuple[int, int],
    *waiting: Training,
    slices: int = 0,
    layers: dict[str, str] | None = None,
) -> Check:
    """Only in beta does a workload wait at the time of the check."""
    reserved = {
        ("alpha", "h100", GPU): alpha,
        ("beta", "h100", GPU): beta,
        ("gamma", "h100", GPU): gamma,
        ("beta", "a100-mig", SLICE): (slices, 0),
    }
    names = tuple(each.workload for each in waiting)
    line = {"alpha": (), "beta": names, "gamma": ()}
    return Check(at(clock), reserved, line, {**dict.fromkeys(names, "quota"), **(layers or {})})


CHECKS = (
    _check("02:10:00", (8, 0), (16, 8), (0, 0)),
    _check("02:45:00", (8, 0), (16, 8), (0, 0), URGENT, NIGHTLY),
    _check("03:05:00", (8, 0), (8, 0), (8, 0), URGENT, LLM, NIGHTLY),
    _check("04:10:00", (0, 0), (10, 2), (8, 0), LLM, NIGHTLY),
    _check("05:40:00", (0, 0), (10, 2), (8, 0), NIGHTLY),
    _check("10:20:00", (4, 0), (10, 2), (8, 0), NIGHTLY),
    _check("11:00:00", (4, 0), (10, 2), (8, 0), NIGHTLY, slices=2, layers={SLICES.workload: "device"}),
    _check("13:25:00", (8, 0), (6, 0), (8, 0), LLM, slices=2),
    _check("16:40:00", (8, 0), (14, 6), (0, 0)),
    _check("20:10:00", (8, 0), (2, 0), (0, 0)),
    _check("23:30:00", (0, 0), (0, 0), (0, 0)),
)

DAY_TRUTH = Truth(PODS, WORKLOADS, GANGS, CAPACITY, CHECKS, OUTAGE)
