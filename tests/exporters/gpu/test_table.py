"""The table of ``--once``: what a person at a node's shell reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpucost_gpu_exporter.dcgm.endpoint import DcgmFailure
from gpucost_gpu_exporter.driver.calls import CORRUPT
from gpucost_gpu_exporter.holders import ShareNoteKind
from gpucost_gpu_exporter.kubelet.client import KubeletFailure
from gpucost_gpu_exporter.metering.missing_parts import NODE, MissingPart
from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import ReadingPart
from gpucost_gpu_exporter.text_report import render, sentences
from tests.support.gpu_node import GpuNode, gpu_node
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeComputeInstance, FakeInstance

WHOLE, SLICED, SHARED, LOST = "GPU-whole", "GPU-sliced", "GPU-shared", "GPU-lost"
PAGE = Path(__file__).parents[3] / "docs" / "gpu-exporter.md"
LOADS: Mapping[str | tuple[str, int], DeviceLoad] = {
    WHOLE: DeviceLoad(busy=0.94, sm=0.61, tensor=0.31, watts=537),
    SLICED: DeviceLoad(watts=200),
    (SLICED, 1): DeviceLoad(busy=1, sm=0.8, tensor=0.2),
    SHARED: DeviceLoad(busy=0.96, watts=228, processes={101: 84, 102: 12}),
    LOST: DeviceLoad(busy=0.5, sm=0.5),
}
EXPECTED = """\
GPU           WHAT                                     HELD BY            SHARE  BUSY  SM   TENSOR  POWER  METHOD
GPU-whole     NVIDIA H100 80GB HBM3                    team/train         1      94%   61%  31%     537 W  exact
GPU-sliced:1  NVIDIA H100 80GB HBM3 1g.10gb            team/slice         0.143  100%  80%  20%     200 W  exact, weighted
GPU-sliced:2  NVIDIA H100 80GB HBM3 1g.10gb            __unallocated__    0.143  0%    0%   0%      0 W    exact
GPU-sliced    NVIDIA H100 80GB HBM3                    __unpartitioned__  0.714  -     -    -       0 W    exact
GPU-shared    NVIDIA L40S                              team/serve-a       0.25   84%   -    -       200 W  weighted
                                                       team/serve-b       0.25   12%   -    -       28 W   weighted
                                                       __unallocated__    0.5    0%    -    -       0 W    exact
GPU-lost      NVIDIA H100 80GB HBM3 LOST: GPU_IS_LOST  team/unlucky       1      -     -    -       -      none
missing: everything on GPU-lost: it does not answer any more (fell off the bus); look for XID 79 in the kernel's \
log (gpu GPU_IS_LOST)
missing: SM activity on GPU-shared: not supported by this GPU and driver (sm_active NOT_SUPPORTED)
missing: tensor activity on GPU-shared: not supported by this GPU and driver (tensor_active NOT_SUPPORTED)
missing: SM share of each process on 2 GPUs or MIG instances: not supported by this GPU and driver \
(process_utilization NOT_SUPPORTED)
"""  # noqa: E501 a table is as wide as it is


def _boards() -> list[FakeBoard]:
    slices = [FakeInstance(gi, 1, "1g.10gb", [FakeComputeInstance(f"MIG-{gi}")]) for gi in (1, 2)]
    return [
        FakeBoard(WHOLE),
        FakeBoard(SLICED, mig=True, instances=slices),
        FakeBoard(SHARED, product="NVIDIA L40S", gpm=None),
        FakeBoard(LOST),
    ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path, build_double(tmp_path), *_boards()) as made:
        made.kubelet.allocatable = {
            "nvidia.com/gpu": [WHOLE, LOST, "MIG-1", "MIG-2"],
            "nvidia.com/gpu.shared": [f"{SHARED}::{replica}" for replica in range(4)],
        }
        yield made


def _looked(node: GpuNode) -> tuple[ExporterSnapshot, ExporterSnapshot]:
    """Two snapshots, two seconds apart, of GPUs that are held in all ways there are."""
    node.pod("train", WHOLE)
    node.pod("slice", "MIG-1")
    node.pod("unlucky", LOST)
    for replica, (name, pid) in enumerate((("serve-a", 101), ("serve-b", 102))):
        uid = node.pod(name, f"{SHARED}::{replica}", resource="nvidia.com/gpu.shared")
        node.process(node.driver.board(SHARED), pid, uid)
    node.start()
    node.ticks(12, LOADS)
    node.driver.board(LOST).lost = True
    return node.tick(1, LOADS), node.ticks(2, LOADS)


def test_a_node_with_all_that_can_be(node: GpuNode) -> None:
    assert render(*_looked(node)) == EXPECTED


def test_columns_are_aligned(node: GpuNode) -> None:
    head, *rows = render(*_looked(node)).partition("missing")[0].splitlines()
    starts = [found.start() for found in re.finditer(r"(?<=  )\S|^\S", head)]
    assert len(starts) == 9
    for row in rows:
        assert all(row[start - 2 : start].isspace() for start in starts[1:]), row


def test_shares_of_each_board_add_up(node: GpuNode) -> None:
    shares: dict[str, float] = {}
    board = ""
    head, *rows = render(*_looked(node)).partition("missing")[0].splitlines()
    for row in rows:
        board = row.split("  ")[0].partition(":")[0] or board
        shares[board] = shares.get(board, 0) + float(row[head.index("SHARE") :].split()[0])
    assert shares == {uuid: pytest.approx(1, abs=0.002) for uuid in (WHOLE, SLICED, SHARED, LOST)}


@pytest.mark.trap(4, 11)
def test_what_nobody_could_say_is_not_shown_as_0(node: GpuNode) -> None:
    before, after = _looked(node)
    [lost] = [row for row in render(before, after).splitlines() if row.startswith(LOST)]
    assert re.split(r"  +", lost)[4:8] == ["-"] * 4

    node.driver.loaded = False
    nothing = render(after, node.ticks(2))
    for row in nothing.partition("missing")[0].splitlines()[1:]:
        assert re.split(r"  +", row)[-5:-1] == ["-"] * 4, row


def test_no_gpus(tmp_path: Path) -> None:
    with gpu_node(tmp_path, build_double(tmp_path)) as node:
        node.driver.loaded = False
        node.start()
        text = render(node.tick(), node.ticks(2))
    assert text.splitlines() == [
        "no GPUs found",
        "missing: the GPU driver: its kernel module is not loaded (driver DRIVER_NOT_LOADED)",
    ]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        *(("driver", code) for code in ("NO_GPUS", "HUNG", "EXITED", "PROTOCOL", "STUCK")),
        *(("kubelet", str(reason)) for reason in KubeletFailure),
        *(("holders", str(kind)) for kind in ShareNoteKind),
        *((str(part), "NOT_SUPPORTED") for part in ReadingPart),
        ("memory", CORRUPT),
        ("pods", "starting"),
        ("pods", "unreachable"),
        ("host_pids", "not_host_pid_namespace"),
        *(("dcgm", str(failure)) for failure in DcgmFailure),
    ],
)
def test_each_lack_is_said_in_words(part: str, reason: str) -> None:
    [sentence] = sentences([MissingPart(NODE, part, reason)])
    found = re.fullmatch(r"missing: (.+?): (.+) \((\w+) (\w+)\)", sentence)
    assert found is not None, sentence
    what, why, *codes = found.groups()
    assert codes == [part, reason]
    assert why != "see the log"
    assert re.search(rf"`{part}`", PAGE.read_text()), what


def test_an_unknown_code_is_shown_as_it_is() -> None:
    assert list(sentences([MissingPart(DeviceKey("GPU-1", "3"), "flux", "BENT")])) == [
        "missing: flux on GPU-1:3: NVML error BENT (flux BENT)"
    ]


def test_the_driver_comes_first() -> None:
    lacks = [
        MissingPart(NODE, "pods", "off"),
        MissingPart(NODE, "dcgm", "timeout"),
        MissingPart(NODE, "driver", "HUNG"),
    ]
    assert [sentence.rpartition("(")[2] for sentence in sentences(lacks)] == [
        "driver HUNG)",
        "pods off)",
        "dcgm timeout)",
    ]
