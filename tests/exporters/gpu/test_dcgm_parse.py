"""dcgm-exporter's text: the dialects, the units, and everything that was seen to be wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.contract.dcgm import NAMES, DcgmField, DcgmUnit, is_blank
from gpucost_gpu_exporter.dcgm.scrapes import MAX_BYTES, MAX_DEVICES, DcgmDropReason, parse
from gpucost_gpu_exporter.model.holdings import DeviceKey

FIXTURES = Path(__file__).parent / "dcgm"
A = "GPU-0a000000-0000-4000-8000-000000000001"
B = "GPU-0b000000-0000-4000-8000-000000000002"
BOARD = DeviceKey(A)
MIB = 2**20


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.prom").read_text()


def line(name: str, value: object, uuid: str = A, labels: str = "") -> str:
    return f'{name}{{gpu="0",UUID="{uuid}"{labels}}} {value}\n'


def dropped(text: str) -> Counter[DcgmDropReason]:
    return parse(text).dropped


@pytest.mark.trap(21, 22, 31)
@pytest.mark.parametrize("dialect", ["classic", "base_units", "old_namespace"])
def test_each_dialect_says_the_same_in_the_same_units(dialect: str) -> None:
    found = parse(fixture(dialect))
    busy = {
        DcgmField.BUSY: 0.91,
        DcgmField.GRAPHICS: 0.875,
        DcgmField.SM: 0.5,
        DcgmField.TENSOR: 0.25,
        DcgmField.MEMORY_USED: 40448 * MIB,
        DcgmField.MEMORY_FREE: 40448 * MIB,
        DcgmField.MEMORY_RESERVED: 1024 * MIB,
        DcgmField.ENERGY: 7_200_000_000,
        DcgmField.POWER: 312.5,
        DcgmField.XID: 43,
    }
    assert found.values[DeviceKey(A)] == pytest.approx(busy)
    idle = found.values[DeviceKey(B)]
    assert (idle[DcgmField.BUSY], idle[DcgmField.SM], idle[DcgmField.ENERGY]) == (0, 0, 350_000_000)
    assert found.values.keys() == {DeviceKey(A), DeviceKey(B)}
    assert not found.dropped


@pytest.mark.trap(1)
def test_busy_graphics_sm_and_tensor_stay_four_different_values() -> None:
    row = parse(fixture("classic")).values[BOARD]
    assert [row[name] for name in (DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.SM, DcgmField.TENSOR)] == [
        0.91,
        0.875,
        0.5,
        0.25,
    ]


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (["37", "0"], [0.37, 0]),
        (["37", "1"], [0.37, 0.01]),
        (["0.370000", "1.000000"], [0.37, 1]),
        (["0.370000", "1"], [0.37, 1]),
        (["1.000000", "0.000000"], [1, 0]),
        (["100", "0"], [1, 0]),
        (["0", "0"], [0, 0]),
    ],
)
def test_the_values_settle_the_unit_of_a_name_that_does_not(
    printed: list[str], expected: list[float]
) -> None:
    rows = zip((A, B), printed, strict=True)
    found = parse("".join(line("DCGM_FI_DEV_GPU_UTIL_RATIO", value, uuid) for uuid, value in rows))
    assert [found.values[DeviceKey(uuid)][DcgmField.BUSY] for uuid in (A, B)] == pytest.approx(expected)
    assert not found.dropped


@pytest.mark.trap(31)
def test_a_bare_1_of_unknown_unit_is_dropped_until_the_endpoint_has_told() -> None:
    one = line("DCGM_FI_DEV_GPU_UTIL_RATIO", "1")
    alone = parse(one)
    assert (alone.values, alone.dropped, alone.units) == ({}, {DcgmDropReason.UNIT_UNKNOWN: 1}, {})
    percent = parse(line("DCGM_FI_DEV_GPU_UTIL_RATIO", "37")).units
    ratio = parse(line("DCGM_FI_DEV_GPU_UTIL_RATIO", "0.370000"), percent).units
    assert (set(percent.values()), set(ratio.values())) == ({DcgmUnit.PERCENT}, {DcgmUnit.RATIO})
    assert parse(one, percent).values[BOARD][DcgmField.BUSY] == 0.01
    assert parse(one, ratio).values[BOARD][DcgmField.BUSY] == 1
    assert parse("", ratio).units == ratio


@pytest.mark.trap(10)
@pytest.mark.fault(3)
def test_corrupt_values_are_dropped_and_counted_by_reason() -> None:
    found = parse(fixture("corrupt"))
    assert found.values == {DeviceKey(B): {DcgmField.POWER: 61.25}, DeviceKey(A): {DcgmField.TENSOR: 0.125}}
    assert found.dropped == {
        DcgmDropReason.OUT_OF_RANGE: 4,
        DcgmDropReason.NO_UUID: 1,
        DcgmDropReason.NOT_FINITE: 2,
        DcgmDropReason.NEGATIVE: 1,
        DcgmDropReason.BLANK: 4,
        DcgmDropReason.BAD_INSTANCE: 1,
        DcgmDropReason.UNPARSABLE: 1,
    }
    assert sum(found.dropped.values()) == found.samples - 2


@pytest.mark.trap(10)
@pytest.mark.fault(3)
@pytest.mark.parametrize(
    "value", [2**31 - 16, 2**31 - 13, 2**63 - 16, 2**63 - 13, 2**47, "140737488355331.000000"]
)
def test_blank_sentinels_of_all_widths_are_known(value: int | str) -> None:
    assert is_blank(float(value))
    assert dropped(line("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", value)) == {DcgmDropReason.BLANK: 1}


@pytest.mark.trap(10)
@pytest.mark.fault(3)
@given(value=st.floats(), name=st.sampled_from(sorted(NAMES)))
def test_no_value_out_of_its_range_ever_comes_through(value: float, name: str) -> None:
    found = parse(line(name, value))
    for row in found.values.values():
        for what, number in row.items():
            assert (
                0
                <= number
                <= (
                    1
                    if what in {DcgmField.BUSY, DcgmField.GRAPHICS, DcgmField.SM, DcgmField.TENSOR}
                    else 1e16
                )
            )
    assert sum(found.dropped.values()) + len(found.values) == 1


@pytest.mark.trap(10)
@pytest.mark.parametrize(("printed", "expected"), [("1.050000", 1.0), ("1.000001", 1.0), ("1.060000", None)])
def test_activity_a_little_above_1_is_1_and_more_is_corrupt(printed: str, expected: float | None) -> None:
    found = parse(line("DCGM_FI_PROF_SM_ACTIVE", printed))
    assert found.values.get(BOARD, {}).get(DcgmField.SM) == expected


def test_one_bad_line_costs_only_itself() -> None:
    good = fixture("classic")
    bad = line("DCGM_FI_DEV_VGPU_PER_PROCESS_UTILIZATION", "ERROR - FAILED TO CONVERT TO STRING")
    found = parse(bad + good + "<html>502 Bad Gateway</html>\n" + bad)
    assert found.values == parse(good).values
    assert found.dropped == {DcgmDropReason.UNPARSABLE: 3}


@pytest.mark.parametrize("value", ['say "hi"', "a}b{c", 'x",y="', "back\\slash", "naïve 名", "z" * 1_000_000])
def test_what_a_user_put_into_a_label_changes_nothing(value: str) -> None:
    found = parse(line("DCGM_FI_DEV_GPU_UTIL", 50, labels=f',GPU_I_ID="3",label_note="{value}"'))
    assert (found.values, found.dropped) == ({DeviceKey(A, "3"): {DcgmField.BUSY: 0.5}}, {})


@pytest.mark.trap(20)
def test_pod_labels_make_no_difference() -> None:
    text = fixture("classic")
    bare = re.sub(r',container="[^"]*",namespace="[^"]*",pod="[^"]*",pod_uid="[^"]*"', "", text)
    as_exporter = bare.replace('"580.95.05"}', '"580.95.05",namespace="gpu-operator",pod="dcgm-exporter-x"}')
    exported = bare.replace("{gpu=", '{exported_pod="train-0",pod="dcgm-exporter-x",gpu=')
    assert len({text, bare, as_exporter, exported}) == 4
    assert parse(text) == parse(bare) == parse(as_exporter) == parse(exported)


@pytest.mark.trap(21)
def test_an_empty_instance_label_is_an_absent_one() -> None:
    empty = line("DCGM_FI_DEV_GPU_UTIL", 50, labels=',GPU_I_PROFILE="",GPU_I_ID="",pod=""')
    assert parse(empty) == parse(line("DCGM_FI_DEV_GPU_UTIL", 50))


@pytest.mark.trap(22)
@pytest.mark.parametrize("host", ["node-1", "dcgm-exporter-4flp2", "localhost", ""])
@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_the_host_label_makes_no_difference(label: str, host: str) -> None:
    text = fixture("classic")
    assert parse(text.replace('Hostname="node-1"', f'{label}="{host}"')) == parse(text)


@pytest.mark.trap(23)
def test_copies_of_a_shared_board_are_one_and_pod_rows_do_not_replace_its_own() -> None:
    assert parse(fixture("shared")).values == {
        BOARD: {
            DcgmField.BUSY: 0.64,
            DcgmField.MEMORY_USED: 30000 * MIB,
            DcgmField.POWER: 210,
            DcgmField.ENERGY: 900_000_000,
            DcgmField.SM: 0.625,
        }
    }


@pytest.mark.trap(23)
def test_two_series_of_the_same_device_are_one() -> None:
    text = fixture("mig")
    assert parse(text + text).values == parse(text).values


@pytest.mark.trap(4, 5, 6)
def test_mig_rows_are_by_instance_and_the_board_s_energy_and_power_stand_once() -> None:
    values = parse(fixture("mig")).values
    assert values.keys() == {BOARD, DeviceKey(B), *(DeviceKey(A, gi) for gi in ("1", "5", "9"))}
    assert values[BOARD] == {DcgmField.ENERGY: 257_858_316, DcgmField.POWER: 179}
    slices = [values[DeviceKey(A, gi)] for gi in ("1", "5", "9")]
    assert not any({DcgmField.BUSY, DcgmField.ENERGY, DcgmField.POWER} & row.keys() for row in slices)
    assert [row[DcgmField.SM] for row in slices] == [1.0, 0.0, 0.375]
    assert sum(row.get(DcgmField.ENERGY, 0) for row in values.values()) == 257_858_316 + 350_000_000


@pytest.mark.trap(33)
def test_of_a_module_with_a_cpu_only_the_gpu_s_own_fields_are_taken() -> None:
    assert parse(fixture("grace_hopper")).values == {
        BOARD: {
            DcgmField.POWER: 410,
            DcgmField.ENERGY: 123_456_789,
            DcgmField.MEMORY_USED: 70000 * MIB,
            DcgmField.MEMORY_FREE: 26000 * MIB,
            DcgmField.MEMORY_RESERVED: 500 * MIB,
            DcgmField.BUSY: 0.5,
        }
    }


@pytest.mark.parametrize("text", ["", "\n", "  \n\n", "# HELP x y\n"])
def test_an_empty_answer_says_so(text: str) -> None:
    found = parse(text)
    assert (found.is_empty, found.values, found.dropped) == (True, {}, {})


def test_a_cut_off_last_line_is_not_believed() -> None:
    whole = line("DCGM_FI_DEV_GPU_UTIL", 91)
    found = parse(whole[:-2])
    assert (found.values, found.dropped, found.is_empty) == ({}, {DcgmDropReason.UNPARSABLE: 1}, False)


def test_a_time_and_spaces_are_read_over() -> None:
    found = parse(f' DCGM_FI_DEV_GPU_UTIL {{ uuid = "{A}" }}\t50  1767225600000\r\n')
    assert found.values == {BOARD: {DcgmField.BUSY: 0.5}}


def test_too_large_a_text_is_refused() -> None:
    assert dropped(line("DCGM_FI_DEV_GPU_UTIL", 1) + "#" * MAX_BYTES) == {DcgmDropReason.TOO_LARGE: 1}


PIECES = st.sampled_from(
    ["DCGM_FI_DEV_GPU_UTIL", "{", "}", '"', "=", ",", "UUID", f'UUID="{A}"', "1", " ", "\n", "#"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_no_text_ever_raises(text: str) -> None:
    found = parse(text)
    assert sum(found.dropped.values()) <= found.samples


@given(st.integers(0, 1000), st.text(max_size=3))
def test_a_damaged_real_shape_never_raises(at: int, put: str) -> None:
    text = fixture("mig")
    place = at * len(text) // 1000
    parse(text[:place] + put + text[place + len(put) :])


@pytest.mark.parametrize("number", ["1" * 41, "1" * 200_000, "1" * 200_000 + "x", "1." + "0" * 200_000])
def test_a_number_that_is_too_long_is_none(number: str) -> None:
    found = parse(line("DCGM_FI_DEV_GPU_UTIL", number) + line("DCGM_FI_DEV_POWER_USAGE", 300))
    assert found.dropped == {DcgmDropReason.UNPARSABLE: 1}
    assert found.values == {BOARD: {DcgmField.POWER: 300}}


@pytest.mark.parametrize("number", ["1.", "+1", "1e0", "1.0E+0", "1.00000000000000000000"])
def test_a_number_may_be_written_in_any_way(number: str) -> None:
    assert parse(line("DCGM_FI_DEV_POWER_USAGE", number)).values == {BOARD: {DcgmField.POWER: 1}}


def test_more_devices_than_a_node_can_have_are_dropped() -> None:
    rows = [line("DCGM_FI_DEV_POWER_USAGE", 1, f"GPU-{number}") for number in range(MAX_DEVICES + 3)]
    again = line("DCGM_FI_DEV_GPU_UTIL", 50, "GPU-0")
    found = parse("".join([*rows, again]))
    assert len(found.values) == MAX_DEVICES
    assert found.dropped == {DcgmDropReason.TOO_MANY_DEVICES: 3}
    assert found.values[DeviceKey("GPU-0")] == {DcgmField.POWER: 1, DcgmField.BUSY: 0.5}
