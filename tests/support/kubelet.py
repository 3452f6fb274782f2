"""A kubelet's pod-resources API: a real gRPC server on a unix socket that can fail as a kubelet does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from gpucost_gpu_exporter.kubelet import pod_resources_pb2 as api

GPU = "nvidia.com/gpu"


class FakeKubelet:
    """Answers with what its fields hold at that moment.

    ``allocatable`` is by resource name; None answers UNIMPLEMENTED, as before Kubernetes 1.21.
    ``fails`` maps a method (``List``, ``GetAllocatableResources``) to the status it ends with;
    ``delay_s`` passes before each answer; ``padding_bytes`` is added to what ``List`` says.
    ``asked`` counts the calls of each method.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: dict[tuple[str, str], api.PodResources] = {}
        self.allocatable: Mapping[str, Sequence[str]] | None = {}
        self.fails: dict[str, grpc.StatusCode] = {}
        self.delay_s = 0.0
        self.padding_bytes = 0
        self.asked: Counter[str] = Counter()
        self._server: grpc.Server | None = None
        self._stopping = threading.Event()

    def hold(
        self, namespace: str, pod: str, *device_ids: str, container: str = "main", resource: str = GPU
    ) -> None:
        """A container of a pod is given devices; said again, they come as a second entry (a NUMA node)."""
        found = self._container(namespace, pod, container)
        found.devices.add(resource_name=resource, device_ids=device_ids)

    def claim(
        self,
        namespace: str,
        pod: str,
        *devices: str,
        container: str = "main",
        driver: str = "gpu.nvidia.com",
        pool: str = "node-1",
    ) -> None:
        """A container of a pod is given devices of a resource claim (DRA)."""
        dynamic = self._container(namespace, pod, container).dynamic_resources.add(
            claim_name=f"{pod}-claim", claim_namespace=namespace
        )
        for device in devices:
            dynamic.claim_resources.add(driver_name=driver, pool_name=pool, device_name=device)

    def remove(self, namespace: str, pod: str) -> None:
        """The kubelet lists the pod no more."""
        del self.pods[namespace, pod]

    def start(self) -> None:
        """Listen on the socket, which is made anew."""
        self._stopping.clear()
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        self._server.add_generic_rpc_handlers((_handlers(self),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Go down; the socket goes with it."""
        if self._server is not None:
            self._stopping.set()
            self._server.stop(grace=None).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """Go down and come back, as at an update of the kubelet: the socket is another file."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def answer(self, method: str, context: grpc.ServicerContext) -> Any:
        """What a call of this method gets."""
        self.asked[method] += 1
        self._stopping.wait(self.delay_s)
        if method in self.fails:
            context.abort(self.fails[method], "made to fail")
        if method == "List":
            return self._list()
        if self.allocatable is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources")
        return api.AllocatableResourcesResponse(
            devices=[
                api.ContainerDevices(resource_name=resource, device_ids=ids)
                for resource, ids in (self.allocatable or {}).items()
            ]
        )

    def _list(self) -> api.ListPodResourcesResponse:
        padding = api.PodResources(namespace="default", name="x" * self.padding_bytes)
        pods = [*self.pods.values(), *([padding] if self.padding_bytes else [])]
        return api.ListPodResourcesResponse(pod_resources=pods)

    def _container(self, namespace: str, pod: str, container: str) -> api.ContainerResources:
        found = self.pods.setdefault((namespace, pod), api.PodResources(namespace=namespace, name=pod))
        for known in found.containers:
            if known.name == container:
                return known
        return found.containers.add(name=container)


def _handlers(kubelet: FakeKubelet) -> grpc.GenericRpcHandler[Any, Any]:
    requests: Mapping[str, Any] = {
        "List": api.ListPodResourcesRequest,
        "GetAllocatableResources": api.AllocatableResourcesRequest,
    }
    return grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister",
        {
            method: grpc.unary_unary_rpc_method_handler(
                lambda _request, context, method=method: kubelet.answer(method, context),
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for method, request in requests.items()
        },
    )
