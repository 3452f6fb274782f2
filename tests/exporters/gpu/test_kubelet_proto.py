"""The generated messages: not drifted from their source, and readable from what a real kubelet sends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpucost_gpu_exporter import kubelet
from gpucost_gpu_exporter.kubelet import pod_resources_pb2 as api

FOLDER = Path(kubelet.__file__).parent


@pytest.mark.parametrize("name", ["pod_resources_pb2.py", "pod_resources_pb2.pyi"])
def test_generated_from_the_proto(name: str, tmp_path: Path) -> None:
    """To generate anew: this command, with the folder of the proto in place of ``tmp_path``."""
    command = f"grpc_tools.protoc --proto_path={FOLDER} --python_out={tmp_path} --pyi_out={tmp_path}"
    subprocess.run([sys.executable, "-m", *command.split(), "pod_resources.proto"], check=True, timeout=60)
    assert _without_version((FOLDER / name).read_text()) == _without_version((tmp_path / name).read_text())


def _without_version(generated: str) -> str:
    """The compiler writes down its own version, which another installation need not share."""
    return re.sub(r"(?<=# Protobuf Python Version: )\S+|(?<=PUBLIC,\n)(?: +\d+,\n){3}", "", generated)


def _field(number: int, content: bytes | str) -> bytes:
    """A length-delimited field of the protobuf wire format."""
    raw = content.encode() if isinstance(content, str) else content
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def test_numbers_are_those_of_the_kubelet() -> None:
    """Bytes written out by hand, with fields that we do not know (CPUs, memory, topology, CDI, share id)."""
    devices = _field(1, "nvidia.com/gpu") + _field(2, "GPU-a") + _field(2, "GPU-b") + _field(3, b"")
    device = _field(1, _field(1, "nvidia.com/gpu=0")) + _field(2, "gpu.nvidia.com")
    device += _field(3, "node-1") + _field(4, "gpu-0") + _field(5, "share")
    dynamic = _field(1, "class") + _field(2, "claim") + _field(3, "research") + _field(4, device)
    container = _field(1, "main") + _field(2, devices) + _field(3, b"\x01\x02") + _field(4, b"")
    pod = _field(1, "train-0") + _field(2, "research")
    pod += bytes([3 << 3 | 2]) + bytes(
        [0x80 | (size := len(container + _field(5, dynamic))) & 0x7F, size >> 7]
    )
    pod += container + _field(5, dynamic) + _field(4, b"\x00") + _field(5, b"")
    answer = bytes([1 << 3 | 2, 0x80 | len(pod) & 0x7F, len(pod) >> 7]) + pod

    found = api.ListPodResourcesResponse.FromString(answer).pod_resources[0]

    assert (found.namespace, found.name, found.containers[0].name) == ("research", "train-0", "main")
    assert found.containers[0].devices[0].resource_name == "nvidia.com/gpu"
    assert list(found.containers[0].devices[0].device_ids) == ["GPU-a", "GPU-b"]
    claim = found.containers[0].dynamic_resources[0]
    assert (claim.claim_name, claim.claim_namespace) == ("claim", "research")
    named = claim.claim_resources[0]
    assert (named.driver_name, named.pool_name, named.device_name) == ("gpu.nvidia.com", "node-1", "gpu-0")
    allocatable = api.AllocatableResourcesResponse.FromString(_field(1, devices) + _field(2, b"\x00"))
    assert list(allocatable.devices[0].device_ids) == ["GPU-a", "GPU-b"]


def test_the_compiler_is_not_loaded_at_run_time() -> None:
    """grpcio imports the empty package ``grpc_tools`` where it is installed; the compiler is large."""
    code = "import sys, gpucost_gpu_exporter.kubelet.client; sys.exit('grpc_tools.protoc' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, env=environment)
