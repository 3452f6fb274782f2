"""Asks the kubelet which pod holds which device, and gives a one-word reason where that fails."""

from __future__ import annotations

import errno
import socket as sockets
from collections.abc import Collection, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc

from gpucost.domain.errors import SourceError
from gpucost.domain.gpu import ResourceCatalog
from gpucost_gpu_exporter.kubelet import pod_resources_pb2 as api
from gpucost_gpu_exporter.model.holdings import NVIDIA_DRA_DRIVERS, DeviceClaim, KubeletState

DEFAULT_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # gRPC's own limit of 4 MiB is too little for a node with many devices
ALLOCATABLE_EVERY_NS = 60 * 10**9


class KubeletFailure(StrEnum):
    """Why the kubelet could not be asked."""

    NO_SOCKET = "no_socket"
    REFUSED = "refused"
    PERMISSION = "permission"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    TOO_LARGE = "too_large"
    UNIMPLEMENTED = "unimplemented"
    FAILED = "failed"


class KubeletDown(SourceError):
    """The kubelet could not be asked for the holders. ``code`` is one of ``KubeletFailure``, ``text`` its own
    words."""

    def __init__(self, code: KubeletFailure, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"kubelet pod-resources: {code}: {text}")

    def __reduce__(self) -> tuple[object, ...]:
        return KubeletDown, (self.code, self.text)


class PodResources:
    """The pod-resources API behind one socket. Ask every 5 to 10 s, not per scrape: the rate is limited.

    Kept are resources of ``nvidia.com`` that are GPUs, those named in ``resources``, and the devices of
    ``dra_drivers``. ``allocatable_problem`` says why the list of devices to hand out could not be read
    (empty when it could); the claims are given without it, or with the list last known.
    """

    def __init__(
        self,
        socket: Path = DEFAULT_SOCKET,
        timeout_s: float = 10.0,
        resources: Collection[str] = (),
        dra_drivers: Collection[str] = NVIDIA_DRA_DRIVERS,
    ) -> None:
        self.allocatable_problem = ""
        self._socket = socket
        self._timeout_s = timeout_s
        self._resources = frozenset(resources)
        self._dra_drivers = frozenset(dra_drivers)
        self._catalog = ResourceCatalog()
        self._channel: grpc.Channel | None = None
        self._allocatable: dict[str, tuple[str, ...]] | None = None
        self._allocatable_due_ns: int | None = None

    def read(self, now_ns: int) -> KubeletState:
        """The holders at this moment. ``now_ns`` is of any clock that only goes forward.

        Raises KubeletDown when the pods could not be listed; the next call connects anew.
        """
        request = api.ListPodResourcesRequest()
        answer: api.ListPodResourcesResponse = self._call("List", request, api.ListPodResourcesResponse)
        claims = tuple(self._claims(answer))
        if self._allocatable_due_ns is None or now_ns >= self._allocatable_due_ns or self._is_news(claims):
            settled = self._read_allocatable()
            self._allocatable_due_ns = now_ns + ALLOCATABLE_EVERY_NS if settled else None
        return KubeletState(claims, self._allocatable)

    def close(self) -> None:
        """Close the connection; a later ``read`` opens another. From another thread it ends a call."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _claims(self, answer: api.ListPodResourcesResponse) -> Iterator[DeviceClaim]:
        """A line per pod, container and device id, each once: a resource may be split by NUMA node."""
        for pod in answer.pod_resources:
            for container in pod.containers:
                found = [*self._plugin_devices(container), *self._claim_devices(container)]
                for resource, device_id, is_dra in dict.fromkeys(found):
                    yield DeviceClaim(pod.namespace, pod.name, container.name, resource, device_id, is_dra)

    def _plugin_devices(self, container: api.ContainerResources) -> Iterator[tuple[str, str, bool]]:
        for devices in container.devices:
            if self._is_gpu(devices.resource_name):
                for device_id in devices.device_ids:
                    yield devices.resource_name, device_id, False

    def _claim_devices(self, container: api.ContainerResources) -> Iterator[tuple[str, str, bool]]:
        for dynamic in container.dynamic_resources:
            for device in dynamic.claim_resources:
                if device.driver_name in self._dra_drivers:
                    device_id = f"{device.driver_name}/{device.pool_name}/{device.device_name}"
                    yield device.driver_name, device_id, True

    def _is_gpu(self, resource: str) -> bool:
        if resource in self._resources:
            return True
        return resource.startswith("nvidia.com/") and self._catalog.is_gpu(resource)

    def _is_news(self, claims: tuple[DeviceClaim, ...]) -> bool:
        """Whether a device is held that the cached list lacks: the devices were repartitioned."""
        if self._allocatable is None:
            return False
        known = {device_id for ids in self._allocatable.values() for device_id in ids}
        return any(claim.device_id not in known for claim in claims if not claim.is_dra)

    def _read_allocatable(self) -> bool:
        """Whether there is no need to ask again soon. The last list is kept when the kubelet's call fails,
        and dropped when it has no such call."""
        request, kind = api.AllocatableResourcesRequest(), api.AllocatableResourcesResponse
        try:
            answer: api.AllocatableResourcesResponse = self._call("GetAllocatableResources", request, kind)
        except KubeletDown as error:
            self.allocatable_problem = error.code
            if error.code is KubeletFailure.UNIMPLEMENTED:
                self._allocatable = None
            return error.code is KubeletFailure.UNIMPLEMENTED
        self.allocatable_problem = ""
        found: dict[str, dict[str, None]] = {}
        for devices in answer.devices:
            if self._is_gpu(devices.resource_name):
                found.setdefault(devices.resource_name, {}).update(dict.fromkeys(devices.device_ids))
        self._allocatable = {resource: tuple(ids) for resource, ids in found.items()}
        return True

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        """One RPC. Raises KubeletDown and drops the connection then: a kept one backs off, not retries."""
        channel = self._channel = self._channel or _channel(self._socket)
        try:
            ask = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return ask(request, timeout=self._timeout_s)
        except ValueError as error:  # just closed by another thread
            raise KubeletDown(KubeletFailure.FAILED, str(error)) from error
        except grpc.RpcError as error:
            down = self._down(error)
            if down.code is not KubeletFailure.UNIMPLEMENTED:
                self.close()
            raise down from error

    def _down(self, error: grpc.RpcError) -> KubeletDown:
        status, text = error.code(), error.details() or ""
        if status is grpc.StatusCode.UNAVAILABLE:
            return KubeletDown(_why_unavailable(self._socket), text)
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
            return KubeletDown(KubeletFailure.TOO_LARGE, text)
        return KubeletDown(_BY_STATUS.get(status, KubeletFailure.FAILED), text or status.name)


_BY_STATUS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: KubeletFailure.TIMEOUT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: KubeletFailure.RATE_LIMITED,
    grpc.StatusCode.UNIMPLEMENTED: KubeletFailure.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED: KubeletFailure.PERMISSION,
    grpc.StatusCode.UNAUTHENTICATED: KubeletFailure.PERMISSION,
}
_BY_ERRNO = {
    errno.ENOENT: KubeletFailure.NO_SOCKET,
    errno.ENOTDIR: KubeletFailure.NO_SOCKET,
    errno.ECONNREFUSED: KubeletFailure.REFUSED,
    errno.EACCES: KubeletFailure.PERMISSION,
    errno.EPERM: KubeletFailure.PERMISSION,
}


def _channel(socket: Path) -> grpc.Channel:
    options = (
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.insecure_channel(f"unix:{socket.absolute()}", options=options)


def _why_unavailable(socket: Path) -> KubeletFailure:
    """The cause of gRPC's UNAVAILABLE, whose text differs between versions: the error of the operating
    system."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(socket))
        except OSError as error:
            return _BY_ERRNO.get(error.errno or 0, KubeletFailure.FAILED)
        with suppress(OSError):
            probe.shutdown(sockets.SHUT_RDWR)
    return KubeletFailure.FAILED
