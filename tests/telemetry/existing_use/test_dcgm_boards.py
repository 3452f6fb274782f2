"""Which GPUs nodes have, and which were broken, out of dcgm-exporter's series in a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.history.gpu_health import NO_POD
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.dcgm_gpus import ObservedGpus, read_gpus
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_history import read_health
from tests.support.dcgm_rows import Rows, at, held, openmetrics_of, used_by
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

WINDOW = Window(at(2), at(5))
UTIL, USED, POWER = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"
XID = "DCGM_FI_DEV_XID_ERRORS"
NO_TARGET = {"pod": "", "namespace": ""}
_KSM = {"UUID": "", "modelName": "", "job": "ksm", "instance": "10.1.1.1:8080", **NO_TARGET}

_WHOLE = {"resource": "nvidia_com_gpu", "unit": "integer"}


def nodes(*names: str) -> list[Rows]:
    return [Rows("kube_node_info", 1, 0, 6, _KSM | {"node": name}) for name in names]


def pod(name: str, node: str, **labels: str) -> Rows:
    """As kube-state-metrics shows it where its own labels are renamed: its target has a namespace too."""
    own = {"exported_namespace": "monitoring", "namespace": "ksm", "exported_pod": name, "pod": "ksm-0"}
    return Rows("kube_pod_info", 1, 0, 6, _KSM | own | {"node": node, **labels})


def gpu(uuid: str, start: float = 0, end: float = 6, name: str = UTIL, **labels: str) -> Rows:
    return Rows(name, 50, start, end, {"UUID": uuid, **labels})


def xid(uuid: str, code: float, start: float, end: float, **labels: str) -> Rows:
    return Rows(XID, code, start, end, {"UUID": uuid, "Hostname": "n1", **labels})


CASES: dict[str, list[Rows]] = {
    # Host names are the node's, in both spellings; a MIG GPU has rows for its instances only.
    "named": [
        *nodes("n1", "n2"),
        *(gpu("GPU-1", Hostname="n1"), gpu("GPU-2", hostname="n1")),
        gpu("GPU-3", name=POWER, Hostname="n2", GPU_I_ID="1", modelName="NVIDIA A30"),
        gpu("GPU-3", name=POWER, Hostname="n2", GPU_I_ID="2", modelName="NVIDIA A30"),
    ],
    # The host name is the exporter's pod, of which Kubernetes knows the node.
    "by-pod": [
        *nodes("n1", "n2"),
        *(pod("dcgm-1", "n1"), pod("dcgm-2", "n2")),
        gpu("GPU-1", Hostname="dcgm-1", pod="dcgm-1"),
        gpu("GPU-2", 0, 3, Hostname="dcgm-2", **used_by("pod-a") | {"pod": "dcgm-2"}),
        gpu("GPU-2", 3, 6, Hostname="dcgm-2", pod="dcgm-2"),
    ],
    "by-address": [
        *nodes("n1", "n2"),
        *(pod("x", "n1", host_ip="10.0.0.1"), pod("y", "n2", pod_ip="10.9.9.2")),
        *(
            gpu("GPU-1", Hostname="localhost", **NO_TARGET),
            gpu("GPU-2", instance="10.9.9.2:9400", **NO_TARGET),
        ),
    ],
    "by-user": [
        *nodes("n7"),
        gpu("GPU-1", Hostname="localhost", instance="h:1", pod="pod-a", namespace="team"),
        gpu("GPU-2", Hostname="localhost", instance="h:1", **NO_TARGET),
    ],
    # GPU-1 is taken out at 3:00 and GPU-9 put in.
    "swapped": [
        *nodes("n1"),
        *(
            gpu("GPU-1", 0, 3, Hostname="n1"),
            gpu("GPU-2", Hostname="n1"),
            gpu("GPU-9", 3.5, 6, Hostname="n1"),
        ),
    ],
    "xid": [
        *nodes("n1"),
        *(gpu(f"GPU-{each}", Hostname="n1") for each in ("old", "new", "soft", "fixed", "twice")),
        # Not seen for an hour, and with a code when it came back.
        *(gpu("GPU-gone", 0, 2.5, Hostname="n1"), gpu("GPU-gone", 3.5, 6, Hostname="n1")),
        xid("GPU-gone", 79, 3.5, 6),
        # There when the GPU was first seen: since when is not known.
        xid("GPU-old", 79, 0, 6),
        # Seen to begin at 3:00:30, and latched ever after.
        xid("GPU-new", 79, 3, 6, err_code="79"),
        # What a program did, then an error that needs a reset, then a program's again.
        *(xid("GPU-soft", 31, 0, 3.5, err_code="31"), xid("GPU-soft", 48, 3.5, 3.75, err_code="48")),
        xid("GPU-soft", 31, 3.75, 6, err_code="31"),
        # Gone with the driver's reload at 2:20.
        *(xid("GPU-fixed", 0, 0, 2), xid("GPU-fixed", 95, 2, 2 + 1 / 3), xid("GPU-fixed", 0, 2 + 1 / 3, 6)),
        # Half an hour before the window.
        *(xid("GPU-twice", 13, 0, 1.5), xid("GPU-twice", 119, 1.5, 6)),
    ],
    # Looks are at 2, 3, 4 and 5 o'clock.
    "brief": [
        *nodes("n1", "n2"),
        *(
            Rows("kube_node_status_capacity", 2, start, end, _KSM | {"node": node, **_WHOLE})
            for node, start, end in (("n1", 0, 6), ("n2", 3.2, 3.6))
        ),
        gpu("GPU-1", Hostname="n1"),
        *(gpu(uuid, 3.3, 3.6, Hostname="n2", modelName="NVIDIA A30") for uuid in ("GPU-2", "GPU-3")),
        gpu("GPU-4", 3.3, 3.6, Hostname="n1"),
    ],
    # An exporter that comes back on another address shows what was latched before.
    "again": [
        *nodes("n1"),
        *(gpu("GPU-1", 0, 3, Hostname="n1"), gpu("GPU-1", 3, 6, Hostname="n1", instance="10.0.0.9:9400")),
        xid("GPU-1", 79, 3, 6, instance="10.0.0.9:9400"),
    ],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("boards") / "data"
    create_blocks(openmetrics_of(CASES), data)
    with running_prometheus(data) as address:
        yield address


def _reader(client: PrometheusClient, case: str) -> KubeStateReader:
    return KubeStateReader(client, PrometheusSourceSettings(), case, WINDOW, UpstreamSettings())


def boards(url: str, case: str, **changes: object) -> ObservedGpus:
    with PrometheusClient(url) as client:
        return read_gpus(_reader(client, case), WINDOW, ClusterHoldings([held("a", 0, 6, **changes)]))


@pytest.mark.trap(22)
def test_host_names_that_are_nodes(url: str) -> None:
    found = boards(url, "named")
    assert found.boards_of == {"n1": 2, "n2": 1}
    assert found.product_of == {"n1": "NVIDIA H100 80GB HBM3", "n2": "NVIDIA A30"}
    assert found.node_of == {"GPU-1": "n1", "GPU-2": "n1", "GPU-3": "n2"}
    assert not found.problems


@pytest.mark.trap(20, 22)
def test_host_names_that_are_the_exporters_pod(url: str) -> None:
    found = boards(url, "by-pod", node="n2")
    assert found.node_of == {"GPU-1": "n1", "GPU-2": "n2"}
    assert found.boards_of == {"n1": 1, "n2": 1}


@pytest.mark.trap(22)
def test_addresses_where_nothing_has_a_name(url: str) -> None:
    assert boards(url, "by-address").node_of == {"GPU-1": "n1", "GPU-2": "n2"}


@pytest.mark.trap(22)
def test_a_gpu_is_where_its_user_is_and_else_nowhere(url: str) -> None:
    found = boards(url, "by-user", node="n7")
    assert found.node_of == {"GPU-1": "n7"}
    assert [(each.code, each.subject) for each in found.problems] == [(DataProblemCode.NODE_UNKNOWN, "GPU-2")]


@pytest.mark.trap(12)
def test_a_board_that_was_swapped_is_one(url: str) -> None:
    found = boards(url, "swapped")
    assert found.boards_of == {"n1": 2}
    assert set(found.node_of) == {"GPU-1", "GPU-2", "GPU-9"}


def test_a_node_that_was_there_between_two_looks_has_its_boards(url: str) -> None:
    found = boards(url, "brief")
    assert found.boards_of == {"n1": 1, "n2": 2}
    assert found.product_of == {"n1": "NVIDIA H100 80GB HBM3", "n2": "NVIDIA A30"}
    assert found.node_of == {"GPU-1": "n1", "GPU-2": "n2", "GPU-3": "n2"}


@pytest.mark.trap(14)
def test_a_latched_code_is_an_event_where_it_changes(url: str) -> None:
    with PrometheusClient(url) as client:
        reader = _reader(client, "xid")
        rows = read_health(reader, WINDOW, read_gpus(reader, WINDOW, ClusterHoldings([])))
    edge = 30 * SECOND_MS
    assert {row[6:] for row in rows} == {NO_POD}
    assert sorted(row[:6] for row in rows) == [
        ("xid", "n1", "GPU-fixed", at(2) + edge, at(2) + 20 * MINUTE_MS + edge, "xid_95"),
        ("xid", "n1", "GPU-new", at(3) + edge, at(4) + edge, "xid_79"),
        ("xid", "n1", "GPU-soft", at(3.5) + edge, at(4.5) + edge, "xid_48"),
        ("xid", "n1", "GPU-twice", at(2), at(2.5) + edge, "xid_119"),
    ]


@pytest.mark.trap(14)
def test_what_a_restarted_exporter_still_tells_is_no_event(url: str) -> None:
    with PrometheusClient(url) as client:
        reader = _reader(client, "again")
        assert read_health(reader, WINDOW, read_gpus(reader, WINDOW, ClusterHoldings([]))) == []


def test_without_any_series_there_are_no_boards(url: str) -> None:
    found = boards(url, "nowhere")
    assert (found.boards_of, found.product_of, found.node_of, list(found.problems)) == ({}, {}, {}, [])
