"""Which pods of the node hold their GPU, by the API; and what its DRA devices are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.watch.reflector import Reflector
from gpucost_gpu_exporter.assemble import WatchedPods
from gpucost_gpu_exporter.model.holdings import DraDevice
from gpucost_gpu_exporter.node_pods import (
    SLICE_PATHS,
    NodePods,
    NodeSlices,
    is_finished,
    pod_reflector,
    slice_reflector,
    trim,
)
from tests.kube.worlds import Clock
from tests.support.kube import Answer, event, kube_server, listed, pod, refused, watched

RUNNING = {"running": {"startedAt": "2026-01-05T08:00:10Z"}}
DONE = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-05T09:00:00Z"}}
FAILED = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-05T09:00:00Z"}}
CRASHING = {"waiting": {"reason": "CrashLoopBackOff"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
DELETED = {"deletionTimestamp": "2026-01-05T09:00:00Z"}


def container(state: dict[str, Any] | None, name: str = "main") -> dict[str, Any]:
    """A container's status; it has an id unless it waits for its first start."""
    started = {} if state in (CREATING, None) else {"containerID": f"containerd://{name}"}
    return {
        "name": name,
        "image": "train:1",
        "restartCount": 0,
        **started,
        **({"state": state} if state else {}),
    }


def finished(
    main: list[dict[str, Any] | None],
    init: list[dict[str, Any] | None] | None = None,
    policy: str | None = "Always",
    metadata: dict[str, Any] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> bool:
    status = {
        "phase": phase,
        "containerStatuses": [container(state, f"main-{at}") for at, state in enumerate(main)],
        "initContainerStatuses": [container(state, f"init-{at}") for at, state in enumerate(init or [])],
    }
    restart = {"restartPolicy": policy} if policy else {}
    return is_finished(trim(pod("p", metadata=metadata or {}, spec={**restart, **spec}, status=status)))


@pytest.mark.trap(18)
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_phase_that_says_so_is_the_end(phase: str) -> None:
    assert finished([DONE], phase=phase)
    assert finished([], phase=phase)


@pytest.mark.trap(18)
@pytest.mark.parametrize(
    ("main", "init", "policy"),
    [
        ([DONE], [], "Never"),
        ([FAILED], [], "Never"),
        ([DONE, FAILED], [DONE], "Never"),
        ([DONE, DONE], [], "OnFailure"),
    ],
)
def test_a_pod_whose_containers_ended_for_good_is_finished_before_its_phase_says_so(
    main: list[Any], init: list[Any], policy: str
) -> None:
    assert finished(main, init, policy)


@pytest.mark.trap(15, 19)
@pytest.mark.parametrize(
    ("main", "init", "policy"),
    [
        ([RUNNING], [], "Never"),
        ([DONE, RUNNING], [], "Never"),
        ([DONE], [RUNNING], "Never"),  # a sidecar still runs
        ([CREATING], [DONE], "Never"),  # between init and main
        ([None], [DONE], "Never"),
        ([], [DONE], "Never"),
        ([CREATING], [], "Always"),
        ([], [], "Never"),
        ([DONE], [], "Always"),  # a container restart, not an end
        ([FAILED], [], "Always"),
        ([CRASHING], [], "Always"),
        ([CRASHING], [], "OnFailure"),
        ([FAILED], [], "OnFailure"),
        ([DONE, FAILED], [], "OnFailure"),
        ([DONE], [], None),
        ([DONE], [], "Sometimes"),
    ],
)
def test_a_pod_that_runs_or_may_start_again_holds_its_gpu(
    main: list[Any], init: list[Any], policy: str
) -> None:
    assert not finished(main, init, policy)


def test_a_container_with_a_restart_policy_of_its_own_waits_for_the_phase() -> None:
    own = [{"name": "main-0", "restartPolicy": "Always"}, {"name": "main-1"}]
    assert not finished([DONE, DONE], policy="Never", containers=own)
    assert finished([DONE, DONE], policy="Never", containers=[{"name": "main-0"}])


@pytest.mark.trap(18)
def test_a_pod_being_deleted_ends_with_its_last_container() -> None:
    assert not finished([RUNNING, DONE], metadata=DELETED)
    assert not finished([DONE], [RUNNING], metadata=DELETED)
    assert not finished([CRASHING], metadata=DELETED)
    assert not finished([CREATING], metadata=DELETED)
    assert finished([DONE, FAILED], [DONE], metadata=DELETED)
    assert finished([DONE, CREATING], metadata=DELETED)


def test_only_what_is_read_is_kept() -> None:
    full = pod(
        "p",
        metadata={"labels": {"a": "b"}, "managedFields": [{"x": 1}], "annotations": {"k": "v" * 1000}},
        spec={"restartPolicy": "Never", "containers": [{"name": "main", "image": "train:1"}]},
        status={
            "podIP": "10.0.0.1",
            "containerStatuses": [container({"terminated": {"exitCode": 1, "message": "x" * 4000}})],
        },
    )
    assert trim(full) == {
        "metadata": {
            "namespace": "team",
            "name": "p",
            "uid": "uid-p",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-05T08:00:00Z",
        },
        "spec": {"nodeName": "gpu-1", "restartPolicy": "Never"},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "containerID": "containerd://main", "state": {"terminated": {"exitCode": 1}}}
            ],
            "initContainerStatuses": [],
        },
    }


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["phase", "containerStatuses", "state", "waiting", "terminated", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(spec=_JUNK, status=_JUNK)
def test_a_malformed_pod_is_trimmed_and_judged_without_raising(spec: Any, status: Any) -> None:
    found = {**pod("p"), "spec": spec, "status": status}
    phase = status.get("phase") if isinstance(status, dict) else None
    assert is_finished(trim(found)) is (phase in ("Succeeded", "Failed"))


def _pods(
    *script: Answer, changed: Callable[[], None] = lambda: None
) -> tuple[NodePods, list[dict[str, str]]]:
    with kube_server(*script) as server:
        reflector = pod_reflector(
            HttpTransport(server.url), "gpu-1", changed, clock=Clock(), jitter=lambda: 0.0
        )
        for _ in script:
            reflector.step()
        return NodePods(reflector), [asked.params for asked in server.asked]


@pytest.mark.trap(15)
@pytest.mark.fault(13)
def test_a_name_used_again_is_another_uid() -> None:
    first, second = pod("worker-0", "one", version=5), pod("worker-0", "two", version=120)
    pods, asked = _pods(
        listed(first),
        watched(event("DELETED", {**first, "metadata": {**first["metadata"], "resourceVersion": "110"}})),
    )
    assert pods.uid("team", "worker-0") is None
    assert asked[0]["fieldSelector"] == "spec.nodeName=gpu-1"
    pods, _ = _pods(listed(first), watched(event("ADDED", second)))
    assert pods.uid("team", "worker-0") == "two"
    assert pods.uid("other", "worker-0") is None


@pytest.mark.trap(15)
def test_of_two_pods_of_one_name_the_newer_counts_and_its_predecessors_end_says_nothing() -> None:
    old = pod("w", "zz", version=900, created="2026-01-05T08:00:00Z", status={"phase": "Failed"})
    new = pod("w", "aa", version=100, created="2026-01-05T09:00:00Z")
    for both in ((old, new), (new, old)):
        pods, _ = _pods(listed(*both))
        assert pods.uid("team", "w") == "aa"
        assert not pods.is_finished("team", "w")


@pytest.mark.parametrize(
    "metadata", [{"resourceVersion": "9" * 5000}, {"creationTimestamp": "9" * 1_000_000}]
)
def test_an_age_of_absurd_length_does_not_raise(metadata: dict[str, str]) -> None:
    pods, _ = _pods(listed(pod("w", "one", metadata=metadata), pod("w", "two")))
    assert pods.uid("team", "w") in {"one", "two"}


def test_large_pods_are_read_in_small_pages() -> None:
    large = [pod(f"p-{n}", metadata={"annotations": {"large": "x" * 2**20}}) for n in range(64)]
    answers = [listed(*large[:32], token="more"), listed(*large[32:])]
    with kube_server(*answers) as server:
        reflector = pod_reflector(HttpTransport(server.url), "gpu-1", lambda: None)
        assert reflector.step() == 0
        assert (len(reflector.snapshot()), reflector.problem) == (64, "")
        assert [asked.params["limit"] for asked in server.asked] == ["32", "32"]
        slices = slice_reflector(HttpTransport(server.url), "gpu-1", lambda: None)
        slices.step()
        assert server.asked[-1].params["limit"] == "32"


def _watched(*script: Answer) -> list[str]:
    """What is wrong before and after each answer."""
    with kube_server(*script) as server:
        transport = HttpTransport(server.url)
        pods = NodePods(pod_reflector(transport, "gpu-1", lambda: None))
        found = WatchedPods(pods, NodeSlices(slice_reflector(transport, "gpu-1", lambda: None)))
        problems = [found.problem]
        for _ in script:
            pods.reflector.step()
            problems.append(found.problem)
        return problems


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_forbids_is_told_from_one_that_does_not_answer(status: int) -> None:
    script = [refused(503), refused(status), listed(pod("w")), refused(status), refused(500)]
    assert _watched(*script) == ["starting", "unreachable", "forbidden", "", "forbidden", "unreachable"]


@pytest.mark.trap(15)
def test_a_container_restart_keeps_the_uid_and_the_gpu() -> None:
    def with_state(version: int, state: dict[str, Any]) -> dict[str, Any]:
        return pod("w", version=version, status={"containerStatuses": [container(state)]})

    pods, _ = _pods(
        listed(with_state(1, RUNNING)),
        watched(event("MODIFIED", with_state(101, FAILED)), event("MODIFIED", with_state(102, CRASHING))),
    )
    assert pods.uid("team", "w") == "uid-w"
    assert not pods.is_finished("team", "w")


def test_a_pod_nobody_has_seen_is_not_finished() -> None:
    pods, _ = _pods(listed())
    assert pods.uid("team", "w") is None
    assert not pods.is_finished("team", "w")


def test_the_exporter_is_woken_when_a_pod_appears_finishes_or_goes_and_not_else() -> None:
    woken: list[int] = []
    ended = {"status": {"phase": "Succeeded"}}
    steps = [
        ("ADDED", pod("w", version=101), 1),
        ("MODIFIED", pod("w", version=102), 1),
        ("MODIFIED", pod("w", version=103, status={"containerStatuses": [container(RUNNING)]}), 1),
        ("MODIFIED", pod("w", version=104, **ended), 2),
        ("MODIFIED", pod("w", version=105, **ended, metadata=DELETED), 2),
        ("DELETED", pod("w", version=106, **ended), 3),
    ]
    for count in range(1, len(steps) + 1):
        woken.clear()
        events = [event(kind, found) for kind, found, _ in steps[:count]]
        _pods(listed(), watched(*events), changed=lambda: woken.append(1))
        assert len(woken) == steps[count - 1][2], steps[count - 1]


def test_a_pod_that_vanished_in_a_gap_wakes_the_exporter_too() -> None:
    woken = threading.Event()
    with kube_server(listed(pod("w")), refused(410), listed()) as server:
        reflector = pod_reflector(HttpTransport(server.url), "gpu-1", woken.set)
        reflector.step()
        assert woken.is_set()
        woken.clear()
        reflector.step()
        assert not woken.is_set()
        reflector.step()
        assert woken.is_set()


@pytest.mark.parametrize("node", ["", "a,spec.x=b", "a=b", "Node 1", "-a", "x" * 254])
def test_a_node_name_that_would_select_something_else_is_refused(node: str) -> None:
    for make in (pod_reflector, slice_reflector):
        with pytest.raises(InputError):
            make(HttpTransport("http://127.0.0.1:1"), node, lambda: None)


def _slice(version: str, generation: int = 1, uid: str = "slice-1") -> dict[str, Any]:
    attributes = {
        "attributes": {
            "uuid": {"string": "GPU-1"},
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }
    return {
        "metadata": {"name": uid, "uid": uid, "resourceVersion": "1", "managedFields": [{}]},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", **({"basic": attributes} if version == "v1beta1" else attributes)}],
        },
    }


@pytest.mark.fault(19)
@pytest.mark.parametrize(("version", "not_served"), [("v1", 0), ("v1beta2", 1), ("v1beta1", 2)])
def test_slices_are_read_in_the_newest_version_that_is_served(version: str, not_served: int) -> None:
    with kube_server(*[refused(404)] * not_served, listed(_slice(version))) as server:
        reflector = slice_reflector(HttpTransport(server.url), "gpu-1", lambda: None)
        slices = NodeSlices(reflector)
        assert slices.devices() == {}
        reflector.step()
        assert slices.devices() == {"gpu.nvidia.com/gpu-1/gpu-0": DraDevice("GPU-1", "gpu")}
        assert slices.devices() is slices.devices()
    assert [asked.path for asked in server.asked] == list(SLICE_PATHS[: not_served + 1])
    assert server.asked[-1].params["fieldSelector"] == "spec.nodeName=gpu-1"
    kept = str(reflector.snapshot()["slice-1"])
    assert "productName" not in kept
    assert "managedFields" not in kept


@pytest.mark.fault(19)
def test_a_cluster_without_slices_is_asked_again_every_few_minutes() -> None:
    with kube_server(*[refused(404)] * 3, listed(_slice("v1"))) as server:
        reflector: Reflector = slice_reflector(HttpTransport(server.url), "gpu-1", lambda: None)
        slices = NodeSlices(reflector)
        assert reflector.step() == 300
        assert (slices.devices(), reflector.absent, reflector.up) == ({}, True, True)
        reflector.step()
        assert list(slices.devices()) == ["gpu.nvidia.com/gpu-1/gpu-0"]
