"""The kubelet's pod-resources API, over a real socket."""

from __future__ import annotations

import os
import pickle
import socket as sockets
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpucost_gpu_exporter.kubelet.client import (
    ALLOCATABLE_EVERY_NS,
    KubeletDown,
    KubeletFailure,
    PodResources,
)
from gpucost_gpu_exporter.model.holdings import DeviceClaim
from tests.support.kubelet import GPU, FakeKubelet

SECOND = 10**9
MIB = 1024 * 1024


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path short enough for a unix socket, whatever the name of the test."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(socket: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(socket) as server:
        yield server


@pytest.fixture
def client(socket: Path) -> Iterator[PodResources]:
    reader = PodResources(socket, timeout_s=5.0)
    yield reader
    reader.close()


def test_lists_claims_by_pod_and_container(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.hold("research", "train-0", "GPU-a", "GPU-b")
    kubelet.hold("research", "train-0", "GPU-a", container="init")
    kubelet.hold("web", "serve-1", "MIG-c", resource="nvidia.com/mig-1g.10gb")
    kubelet.allocatable = {GPU: ("GPU-a", "GPU-b"), "nvidia.com/mig-1g.10gb": ("MIG-c",)}

    state = client.read(0)

    assert set(state.claims) == {
        DeviceClaim("research", "train-0", "main", GPU, "GPU-a"),
        DeviceClaim("research", "train-0", "main", GPU, "GPU-b"),
        DeviceClaim("research", "train-0", "init", GPU, "GPU-a"),
        DeviceClaim("web", "serve-1", "main", "nvidia.com/mig-1g.10gb", "MIG-c"),
    }
    assert state.allocatable == {GPU: ("GPU-a", "GPU-b"), "nvidia.com/mig-1g.10gb": ("MIG-c",)}


def test_a_resource_split_by_numa_node_is_one(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.hold("research", "train-0", "GPU-a", "GPU-b")
    kubelet.hold("research", "train-0", "GPU-b", "GPU-c")
    assert [claim.device_id for claim in client.read(0).claims] == ["GPU-a", "GPU-b", "GPU-c"]


def test_only_gpus_are_kept(kubelet: FakeKubelet, socket: Path, client: PodResources) -> None:
    kubelet.hold("n", "p", "nic-1", resource="nvidia.com/hostdev")
    kubelet.hold("n", "p", "card-1", resource="amd.com/gpu")
    kubelet.hold("n", "p", "GPU-a", resource="example.com/our-gpu")
    kubelet.hold("n", "p", "GPU-b::0", resource="nvidia.com/gpu.shared")
    kubelet.allocatable = {"nvidia.com/hostdev": ("nic-1",), "example.com/our-gpu": ("GPU-a",)}

    assert [claim.device_id for claim in client.read(0).claims] == ["GPU-b::0"]
    assert client.read(0).allocatable == {}
    renamed = PodResources(socket, resources=["example.com/our-gpu"])
    try:
        state = renamed.read(0)
    finally:
        renamed.close()
    assert [claim.device_id for claim in state.claims] == ["GPU-a", "GPU-b::0"]
    assert state.allocatable == {"example.com/our-gpu": ("GPU-a",)}


def test_devices_of_resource_claims(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.claim("research", "dra-0", "gpu-0", "gpu-1")
    kubelet.claim("research", "dra-0", "channel-0", driver="compute-domain.nvidia.com")
    assert client.read(0).claims == tuple(
        DeviceClaim(
            "research", "dra-0", "main", "gpu.nvidia.com", f"gpu.nvidia.com/node-1/{name}", is_dra=True
        )
        for name in ("gpu-0", "gpu-1")
    )


def test_allocatable_is_read_once_a_minute(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.allocatable = {GPU: ("GPU-a",)}
    client.read(0)
    kubelet.allocatable = {GPU: ("GPU-a", "GPU-b")}

    assert client.read(ALLOCATABLE_EVERY_NS - 1).allocatable == {GPU: ("GPU-a",)}
    assert client.read(ALLOCATABLE_EVERY_NS).allocatable == {GPU: ("GPU-a", "GPU-b")}
    assert kubelet.asked == {"List": 3, "GetAllocatableResources": 2}


@pytest.mark.fault(7)
def test_an_unknown_device_asks_for_allocatable_at_once(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.allocatable = {GPU: ("MIG-old",)}
    client.read(0)
    kubelet.allocatable = {GPU: ("MIG-new",)}
    kubelet.hold("research", "train-0", "MIG-new")
    assert client.read(SECOND).allocatable == {GPU: ("MIG-new",)}


def test_an_old_kubelet_has_no_allocatable(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.hold("research", "train-0", "GPU-a")
    kubelet.allocatable = None
    state = client.read(0)
    assert state.allocatable is None
    assert [claim.device_id for claim in state.claims] == ["GPU-a"]
    assert client.allocatable_problem == "unimplemented"
    client.read(SECOND)
    assert kubelet.asked["GetAllocatableResources"] == 1


def test_allocatable_is_kept_while_it_cannot_be_read(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.allocatable = {GPU: ("GPU-a",)}
    client.read(0)
    kubelet.fails["GetAllocatableResources"] = grpc.StatusCode.RESOURCE_EXHAUSTED

    assert client.read(ALLOCATABLE_EVERY_NS).allocatable == {GPU: ("GPU-a",)}
    assert client.allocatable_problem == "rate_limited"

    kubelet.fails.clear()
    kubelet.allocatable = {GPU: ("GPU-b",)}
    assert client.read(ALLOCATABLE_EVERY_NS + SECOND).allocatable == {GPU: ("GPU-b",)}
    assert client.allocatable_problem == ""


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, KubeletFailure.RATE_LIMITED),
        (grpc.StatusCode.UNIMPLEMENTED, KubeletFailure.UNIMPLEMENTED),
        (grpc.StatusCode.PERMISSION_DENIED, KubeletFailure.PERMISSION),
        (grpc.StatusCode.INTERNAL, KubeletFailure.FAILED),
    ],
)
def test_a_refusal_says_why_and_passes(
    kubelet: FakeKubelet, client: PodResources, status: grpc.StatusCode, reason: KubeletFailure
) -> None:
    kubelet.fails["List"] = status
    with pytest.raises(KubeletDown, match="made to fail") as caught:
        client.read(0)
    assert caught.value.code is reason
    kubelet.fails.clear()
    assert client.read(SECOND).claims == ()


def test_a_slow_kubelet_is_a_timeout(kubelet: FakeKubelet, socket: Path) -> None:
    impatient = PodResources(socket, timeout_s=0.2)
    kubelet.delay_s = 30.0
    with pytest.raises(KubeletDown) as caught:
        impatient.read(0)
    impatient.close()
    assert caught.value.code is KubeletFailure.TIMEOUT


def test_closing_ends_a_call_in_flight(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.delay_s = 30.0
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(client.read, 0)
        while not kubelet.asked["List"]:
            time.sleep(0.005)
        client.close()
        with pytest.raises(KubeletDown) as caught:
            reading.result(timeout=20.0)
    assert caught.value.code is KubeletFailure.FAILED
    kubelet.delay_s = 0.0
    assert client.read(SECOND).claims == ()


def test_no_socket(client: PodResources) -> None:
    with pytest.raises(KubeletDown) as caught:
        client.read(0)
    assert caught.value.code is KubeletFailure.NO_SOCKET


def test_a_socket_nobody_listens_on(kubelet: FakeKubelet, client: PodResources, socket: Path) -> None:
    kubelet.stop()
    with sockets.socket(sockets.AF_UNIX) as left_behind:
        left_behind.bind(str(socket))
    with pytest.raises(KubeletDown) as caught:
        client.read(0)
    assert caught.value.code is KubeletFailure.REFUSED


@pytest.mark.parametrize("made", ["pipe", "file", "folder", "link-to-a-device", "link-to-nothing"])
def test_what_is_no_socket_is_told_at_once(
    kubelet: FakeKubelet, client: PodResources, socket: Path, made: str
) -> None:
    kubelet.stop()
    socket.unlink(missing_ok=True)
    if made == "pipe":
        os.mkfifo(socket)
    elif made == "file":
        socket.write_text("not a socket")
    elif made == "folder":
        socket.mkdir()
    else:
        socket.symlink_to("/dev/zero" if made.endswith("device") else socket.with_name("nothing"))
    with pytest.raises(KubeletDown) as caught:
        client.read(0)
    assert caught.value.code in (KubeletFailure.REFUSED, KubeletFailure.NO_SOCKET)
    if made == "folder":
        socket.rmdir()


def test_a_socket_that_may_not_be_opened(kubelet: FakeKubelet, client: PodResources, socket: Path) -> None:
    socket.chmod(0)
    with _not_root(), pytest.raises(KubeletDown) as caught:
        client.read(0)
    assert caught.value.code is KubeletFailure.PERMISSION
    assert kubelet.asked == {}


@contextmanager
def _not_root() -> Iterator[None]:
    """Root may open every socket, so run as another user for a moment."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_kubelet_that_restarts_is_found_again(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.hold("research", "train-0", "GPU-a")
    before = client.read(0)
    kubelet.restart()
    assert client.read(SECOND) == before

    kubelet.stop()
    with pytest.raises(KubeletDown) as caught:
        client.read(2 * SECOND)
    assert caught.value.code is KubeletFailure.NO_SOCKET
    kubelet.start()
    assert client.read(3 * SECOND) == before


def test_an_answer_of_more_than_4_mib_is_read(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.hold("research", "train-0", "GPU-a")
    kubelet.padding_bytes = 5 * MIB
    assert [claim.device_id for claim in client.read(0).claims] == ["GPU-a"]


def test_an_answer_of_more_than_16_mib_is_too_large(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.padding_bytes = 17 * MIB
    with pytest.raises(KubeletDown) as caught:
        client.read(0)
    assert caught.value.code is KubeletFailure.TOO_LARGE


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(KubeletDown(KubeletFailure.TIMEOUT, "Deadline Exceeded")))
    assert (error.code, error.text) == (KubeletFailure.TIMEOUT, "Deadline Exceeded")
    assert str(error) == "kubelet pod-resources: timeout: Deadline Exceeded"
