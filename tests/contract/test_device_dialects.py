"""What rows of AMD's exporter and of OpenTelemetry are about, and which values are measurements."""

from __future__ import annotations

import pytest

from gpucost.contract.amd_exporter import is_measured, parts_of
from gpucost.contract.dcgm import SCALES, DcgmField
from gpucost.contract.device_dialects import AMD, DCGM, DIALECTS, OTEL

GPU = {"gpu_id": "3", "hostname": "n1", "serial_number": "S1", "gpu_partition_id": "0"}
SPX, CPX = {**GPU, "gpu_compute_partition_type": "spx"}, {**GPU, "gpu_compute_partition_type": "cpx"}
OWN = {"hw_id": "GPU-1", "hw_type": "gpu", "k8s_node_name": "n1"}


@pytest.mark.parametrize(
    ("labels", "device"),
    [
        (SPX, ("S1", "")),
        ({**SPX, "gpu_compute_partition_type": ""}, ("S1", "")),
        (CPX, ("S1", "0")),
        ({**CPX, "gpu_partition_id": "7"}, ("S1", "7")),
        # A virtual machine shows no serial number; a UUID is exported on request.
        ({**SPX, "serial_number": ""}, ("n1/3", "")),
        ({**SPX, "serial_number": "", "gpu_uuid": "u"}, ("u", "")),
        # Nothing says which partitions are of one GPU: each is alone.
        ({**CPX, "serial_number": "", "gpu_uuid": "u"}, ("n1/3", "0")),
        ({"hostname": "n1"}, None),
    ],
)
def test_amds_rows(labels: dict[str, str], device: tuple[str, str] | None) -> None:
    assert AMD.device(labels) == device


@pytest.mark.parametrize(
    ("style", "number", "parts"),
    [
        ("spx", "0", None),
        ("dpx", "0", 2),
        ("tpx", "1", 3),
        ("QPX", "3", 4),
        ("cpx", "5", 6),
        ("cpx", "NA", 1),
    ],
)
def test_how_many_partitions_a_gpu_has(style: str, number: str, parts: int | None) -> None:
    assert parts_of({**GPU, "gpu_compute_partition_type": style, "gpu_partition_id": number}) == parts


@pytest.mark.parametrize("field", [DcgmField.BUSY, DcgmField.ENERGY, DcgmField.POWER])
def test_only_the_first_partition_is_measured(field: DcgmField) -> None:
    assert is_measured(field, SPX)
    assert is_measured(field, CPX)
    assert not is_measured(field, {**CPX, "gpu_partition_id": "1"})
    assert not is_measured(field, {**CPX, "gpu_partition_id": "NA"})


def test_memory_is_not_read_of_partitions() -> None:
    assert is_measured(DcgmField.MEMORY_USED, SPX)
    assert not is_measured(DcgmField.MEMORY_USED, CPX)


@pytest.mark.parametrize(
    ("labels", "device"),
    [
        (OWN, ("n1/GPU-1", "")),
        ({**OWN, "hw_gpu_task": "general"}, ("n1/GPU-1", "")),
        # The id is unique in its host only.
        ({**OWN, "k8s_node_name": "", "host_name": "n2"}, ("n2/GPU-1", "")),
        ({**OWN, "k8s_node_name": "", "instance": "x:1"}, ("x:1/GPU-1", "")),
        ({**OWN, "hw_gpu_task": "encoder"}, None),
        ({**OWN, "hw_type": "cpu"}, None),
        ({**OWN, "hw_gpu_partition": "0"}, None),
        ({**OWN, "hw_id": ""}, None),
    ],
)
def test_opentelemetrys_rows(labels: dict[str, str], device: tuple[str, str] | None) -> None:
    assert OTEL.device(labels) == device


@pytest.mark.parametrize("field", [DcgmField.ENERGY, DcgmField.POWER])
def test_energy_of_what_is_not_called_a_gpu_is_of_anything(field: DcgmField) -> None:
    untold = {**OWN, "hw_type": ""}
    assert OTEL.is_measured(field, OWN)
    assert not OTEL.is_measured(field, untold)
    assert OTEL.is_measured(DcgmField.BUSY, untold)


def test_every_name_has_a_unit_and_is_of_one_dialect() -> None:
    spelled = [name for dialect in DIALECTS for name in dialect.spelled]
    assert len(spelled) == len(set(spelled))
    for dialect in (AMD, OTEL):
        assert {dialect.meaning(name).unit for name in dialect.spelled} <= SCALES.keys()
    assert {DCGM.meaning(name) for name in DCGM.spelled} == set(DCGM.names.values())
    assert {"gpu_gfx_activity", "amd_gpu_gfx_activity"} <= set(AMD.spelled)
