"""The stand-in driver library, read through the real nvidia-ml-py in a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml.build import NAME, build_double
from tests.support.nvml.client import Client
from tests.support.nvml.driver import (
    DeviceLoad,
    FakeBoard,
    FakeComputeInstance,
    FakeDriver,
    FakeInstance,
    FakeProcess,
    ProcessKind,
    ProcessSample,
    UtilizationSample,
)
from tests.support.nvml.symbols import SYMBOLS

FIRST = "GPU-00000000-0000-4000-8000-000000000001"
SECOND = "GPU-00000000-0000-4000-8000-000000000002"
MIG_SMALL = "MIG-00000000-0000-5000-8000-000000000011"
MIG_LARGE = "MIG-00000000-0000-5000-8000-000000000012"
MIG_PART = "MIG-00000000-0000-5000-8000-000000000013"
SECOND_NS = 10**9
GIB = 1 << 30
LONG_AGO = 0

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST = 9, 10, 13, 15


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def library(libraries: Path) -> Path:
    return build_double(libraries)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(
        tmp_path / "nvml.state", [FakeBoard(FIRST), FakeBoard(SECOND, product="Tesla T4", gpm=None)]
    )
    driver.write()
    return driver


@pytest.fixture
def client(driver: FakeDriver, library: Path) -> Iterator[Client]:
    with Client(driver, library) as client:
        client("nvmlInit()")
        client(f"one = nvmlDeviceGetHandleByUUID('{FIRST}')")
        client(f"two = nvmlDeviceGetHandleByUUID('{SECOND}')")
        yield client


def partitioned_board() -> FakeBoard:
    """One slice whole, three slices as two compute instances of two and one; three slices are free."""
    board = FakeBoard(FIRST, mig=True)
    board.instances = [
        FakeInstance(
            9,
            1,
            "1g.10gb",
            [FakeComputeInstance(MIG_SMALL, 1, index=4)],
            memory_total_bytes=10 * GIB,
            memory_used_bytes=3 * GIB,
            processes=[FakeProcess(901, 2 * GIB)],
        ),
        FakeInstance(
            2,
            3,
            "3g.40gb",
            [FakeComputeInstance(MIG_LARGE, 2, 0), FakeComputeInstance(MIG_PART, 1, 1)],
            memory_total_bytes=40 * GIB,
            processes=[FakeProcess(902, GIB), FakeProcess(903, None, compute_instance=1)],
        ),
    ]
    return board


@pytest.fixture
def mig(driver: FakeDriver, client: Client) -> FakeBoard:
    """The first GPU in MIG mode, with the handles ``small``, ``large`` and ``part``."""
    driver.boards[0] = board = partitioned_board()
    driver.write()
    for name, uuid in (("small", MIG_SMALL), ("large", MIG_LARGE), ("part", MIG_PART)):
        client(f"{name} = nvmlDeviceGetHandleByUUID('{uuid}')")
    return board


def test_the_library_exports_what_the_list_says(library: Path) -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library / NAME)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {line.split()[0] for line in listed} == SYMBOLS


def test_identity(client: Client) -> None:
    assert client("nvmlSystemGetDriverVersion()") == "580.95.05"
    assert client("nvmlSystemGetNVMLVersion()") == "13.580.95.05"
    assert client("nvmlDeviceGetCount()") == 2
    assert client("nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(1))") == SECOND
    assert client("nvmlDeviceGetName(two)") == "Tesla T4"
    assert client("nvmlDeviceGetMinorNumber(two)") == 1
    assert client("nvmlDeviceGetIndex(two)") == 1
    assert client.error("nvmlDeviceGetHandleByIndex(2)") == INVALID_ARGUMENT
    assert client.error("nvmlDeviceGetHandleByUUID('GPU-none')") == NOT_FOUND
    assert client("nvmlErrorString(15)") == "GPU is lost"


def test_pci(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].pci_bus_id = "00000001:4E:02.0"
    driver.write()
    pci = client("nvmlDeviceGetPciInfo(one)")
    assert (pci["busId"], pci["busIdLegacy"]) == ("00000001:4E:02.0", "0001:4E:02.0")
    assert (pci["domain"], pci["bus"], pci["device"]) == (1, 0x4E, 2)


def test_memory_counts_the_reserved_part_apart_in_the_second_version(
    driver: FakeDriver, client: Client
) -> None:
    driver.boards[0].memory_used_bytes = 10 * GIB
    driver.boards[0].memory_reserved_bytes = GIB
    driver.write()
    first = client("nvmlDeviceGetMemoryInfo(one)")
    assert first == {"total": 80 * GIB, "free": 69 * GIB, "used": 11 * GIB}
    second = client("nvmlDeviceGetMemoryInfo(one, version=nvmlMemory_v2)")
    del second["version"]
    assert second == {"total": 80 * GIB, "reserved": GIB, "free": 69 * GIB, "used": 10 * GIB}


def test_samples_are_given_from_the_last_seen_on(driver: FakeDriver, client: Client) -> None:
    assert client.error(f"nvmlDeviceGetSamples(one, 1, {LONG_AGO})") == NOT_FOUND
    driver.advance(SECOND_NS, {FIRST: DeviceLoad(busy=0.25)})
    driver.write()
    kind, samples = client(f"[nvmlDeviceGetSamples(one, 1, {LONG_AGO})[0]]"), samples_after(client, LONG_AGO)
    assert kind == [1]  # unsigned int
    assert [percent for _, percent in samples] == [25] * 6
    last = samples[-1][0]
    assert last == driver.now_ns // 1000
    assert client.error(f"nvmlDeviceGetSamples(one, 1, {last})") == NOT_FOUND
    driver.advance(SECOND_NS // 2, {FIRST: DeviceLoad(busy=1.0)})
    driver.write()
    assert samples_after(client, last) == [
        [last + 166_666, 100],
        [last + 333_333, 100],
        [last + 500_000, 100],
    ]
    assert client("nvmlDeviceGetUtilizationRates(one)") == {"gpu": 100, "memory": 0}
    assert client("nvmlDeviceGetUtilizationRates(two)") == {"gpu": 0, "memory": 0}


def samples_after(client: Client, last: int) -> list[list[int]]:
    found: list[list[int]] = client(
        f"[[s.timeStamp, s.sampleValue.uiVal] for s in nvmlDeviceGetSamples(one, 1, {last})[1]]"
    )
    return found


def test_the_ring_keeps_the_newest_samples(driver: FakeDriver, client: Client) -> None:
    for _ in range(60):
        driver.advance(SECOND_NS)
    driver.write()
    samples = samples_after(client, LONG_AGO)
    assert len(samples) == 120
    assert samples[-1][0] - samples[0][0] == pytest.approx(119 / 6 * 10**6, abs=10)


def test_whole_percents_add_up_to_the_load() -> None:
    driver = FakeDriver(Path("unused"), [FakeBoard(FIRST)])
    busy = share = 0
    for _ in range(600):
        driver.advance(SECOND_NS // 6, {FIRST: DeviceLoad(busy=1 / 3, processes={7: 100 / 7})})
        busy += driver.boards[0].samples[-1].percent
        share += driver.boards[0].process_samples[-1].sm
    assert busy == 20_000
    assert share == pytest.approx(600 * 100 / 7, abs=1)


def test_power_and_energy(driver: FakeDriver, client: Client) -> None:
    for _ in range(3):
        driver.advance(333_333_333, {FIRST: DeviceLoad(watts=700.1)})
    driver.boards[1].watts = driver.boards[1].energy_mj = None
    driver.write()
    assert client("nvmlDeviceGetPowerUsage(one)") == 700_100
    assert client("nvmlDeviceGetTotalEnergyConsumption(one)") == 700_099  # of 0.999999999 s
    assert client.error("nvmlDeviceGetPowerUsage(two)") == NOT_SUPPORTED
    assert client.error("nvmlDeviceGetTotalEnergyConsumption(two)") == NOT_SUPPORTED


def test_each_field_value_has_its_own_error(driver: FakeDriver, client: Client) -> None:
    driver.advance(SECOND_NS, {FIRST: DeviceLoad(watts=5.0, throttled={74: 0.5, 270: 0.25})})
    driver.boards[0].field_errors = {269: NO_PERMISSION}
    driver.write()
    values = client("nvmlDeviceGetFieldValues(one, [83, 74, 76, 269, 270, 271, 12345])")
    assert [(value["nvmlReturn"], value["value"]) for value in values if value["nvmlReturn"]] == [
        (NO_PERMISSION, values[3]["value"]),
        (NOT_SUPPORTED, values[6]["value"]),
    ]
    assert {value["valueType"] for value in values} == {3}
    assert [v["value"]["ullVal"] for v in values[:3]] == [5000, 500_000_000, 0]
    assert [v["value"]["ullVal"] for v in values[4:6]] == [250_000_000, 0]


def test_clock_reasons_under_both_names(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].clock_reasons = 0x44
    driver.write()
    assert client("nvmlDeviceGetCurrentClocksEventReasons(one)") == 0x44
    assert client("nvmlDeviceGetCurrentClocksThrottleReasons(one)") == 0x44


def test_processes(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].processes = [
        FakeProcess(101, 5 * GIB),
        FakeProcess(102, None),
        FakeProcess(103, GIB, ProcessKind.GRAPHICS),
        FakeProcess(104, 2 * GIB, ProcessKind.MPS),
    ]
    driver.write()
    whole = {"gpuInstanceId": 0xFFFFFFFF, "computeInstanceId": 0xFFFFFFFF}
    assert client("nvmlDeviceGetComputeRunningProcesses(one)") == [
        {"pid": 101, "usedGpuMemory": 5 * GIB, **whole},
        {"pid": 102, "usedGpuMemory": None, **whole},
    ]
    assert [p["pid"] for p in client("nvmlDeviceGetGraphicsRunningProcesses(one)")] == [103]
    assert [p["pid"] for p in client("nvmlDeviceGetMPSComputeRunningProcesses(one)")] == [104]
    assert client("nvmlDeviceGetComputeRunningProcesses(two)") == []


def test_process_utilization(driver: FakeDriver, client: Client) -> None:
    call = f"nvmlDeviceGetProcessUtilization(one, {LONG_AGO})"
    assert client.error(call) == NOT_FOUND
    driver.advance(SECOND_NS // 6, {FIRST: DeviceLoad(busy=1.0, processes={101: 60.0, 102: 20.0, 103: 0.0})})
    driver.write()
    found = client(call)
    assert [(s["pid"], s["smUtil"], s["timeStamp"]) for s in found] == [
        (101, 60, driver.now_ns // 1000),
        (102, 20, driver.now_ns // 1000),
    ]
    newer = f"nvmlDeviceGetProcessUtilization(one, {driver.now_ns // 1000})"
    assert client.error(newer) == NOT_FOUND
    driver.boards[0].process_samples.append(ProcessSample(driver.now_ns // 1000 + 1, 999, 4_000_000, 7))
    driver.write()
    assert [(s["pid"], s["smUtil"], s["memUtil"]) for s in client(newer)] == [(999, 4_000_000, 7)]


def test_process_utilization_can_say_success_with_nothing(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].no_process_samples_is_success = True
    driver.write()
    assert client.error(f"nvmlDeviceGetProcessUtilization(one, {LONG_AGO})") == 0


def test_gpm_is_the_difference_of_two_samples(driver: FakeDriver, client: Client) -> None:
    assert client("nvmlGpmQueryDeviceSupport(one).isSupportedDevice") == 1
    assert client("nvmlGpmQueryDeviceSupport(two).isSupportedDevice") == 0
    client("a, b, c = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()")
    client("a = nvmlGpmSampleGet(one, a)")
    assert client.error("nvmlGpmSampleGet(two, c)") == NOT_SUPPORTED
    driver.advance(SECOND_NS, {FIRST: DeviceLoad(busy=1.0, sm=0.5, tensor=0.125)})
    driver.advance(SECOND_NS, {FIRST: DeviceLoad(busy=0.5)})
    driver.write()
    client("b = nvmlGpmSampleGet(one, b)")
    assert client("gpm(a, b, 1, 2, 5, 10)") == [[0, 75.0], [0, 25.0], [0, 6.25], [NOT_SUPPORTED, 0.0]]
    assert client.error("gpm(b, a, 1)") == INVALID_ARGUMENT
    assert client.error("gpm(a, c, 1)") == INVALID_ARGUMENT
    client("[nvmlGpmSampleFree(sample) for sample in (a, b, c)]")


def test_gpm_samples_are_100_ms_apart(driver: FakeDriver, client: Client) -> None:
    client("a, b = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()")
    client("a = nvmlGpmSampleGet(one, a)")
    for length_ns, error in ((99_999_999, True), (1, False)):
        driver.advance(length_ns, {FIRST: DeviceLoad(busy=1.0)})
        driver.write()
        client("b = nvmlGpmSampleGet(one, b)")
        if error:
            assert client.error("gpm(a, b, 1)") == INVALID_ARGUMENT
        else:
            assert client("gpm(a, b, 1)") == [[0, 100.0]]


@pytest.mark.usefixtures("mig")
def test_mig_devices_have_a_sparse_index(client: Client) -> None:
    assert client("nvmlDeviceGetMigMode(one)") == [1, 1]
    assert client("nvmlDeviceGetMigMode(two)") == [0, 0]
    assert client("nvmlDeviceGetMaxMigDeviceCount(one)") == 7
    assert client("nvmlDeviceGetMaxMigDeviceCount(two)") == 0
    found = {}
    for index in range(7):
        call = f"nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(one, {index}))"
        if index in (0, 1, 4):
            found[index] = client(call)
        else:
            assert client.error(call) == NOT_FOUND
    assert found == {0: MIG_LARGE, 1: MIG_PART, 4: MIG_SMALL}
    assert client.error("nvmlDeviceGetMigDeviceHandleByIndex(two, 0)") == NOT_SUPPORTED


@pytest.mark.usefixtures("mig")
def test_mig_devices_say_what_they_are(client: Client) -> None:
    assert client("nvmlDeviceGetName(large)") == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert [client(f"nvmlDeviceGetGpuInstanceId({name})") for name in ("small", "large", "part")] == [9, 2, 2]
    assert client("nvmlDeviceGetComputeInstanceId(part)") == 1
    assert client("nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))") == FIRST
    attributes = client("nvmlDeviceGetAttributes(large)")
    assert attributes["multiprocessorCount"] == 37
    assert (attributes["gpuInstanceSliceCount"], attributes["computeInstanceSliceCount"]) == (3, 2)
    assert attributes["memorySizeMB"] == 40 * 1024
    assert client("nvmlDeviceGetMemoryInfo(small)")["used"] == 3 * GIB
    assert client("[nvmlDeviceIsMigDeviceHandle(device).value for device in (one, small)]") == [0, 1]


@pytest.mark.usefixtures("mig")
def test_processes_of_a_mig_device_and_of_its_board(client: Client) -> None:
    assert client("nvmlDeviceGetComputeRunningProcesses(part)") == [
        {"pid": 903, "usedGpuMemory": None, "gpuInstanceId": 2, "computeInstanceId": 1}
    ]
    assert [p["pid"] for p in client("nvmlDeviceGetComputeRunningProcesses(large)")] == [902]
    board = client("nvmlDeviceGetComputeRunningProcesses(one)")
    assert [(p["pid"], p["gpuInstanceId"]) for p in board] == [(901, 9), (902, 2), (903, 2)]


@pytest.mark.usefixtures("mig")
@pytest.mark.parametrize("device", ["one", "small"])
@pytest.mark.parametrize(
    "call",
    ["GetUtilizationRates({})", "GetSamples({}, 1, 0)", "GetProcessUtilization({}, 0)"],
)
def test_mig_has_no_utilization(client: Client, device: str, call: str) -> None:
    assert client.error("nvmlDevice" + call.format(device)) == NOT_SUPPORTED


@pytest.mark.usefixtures("mig")
def test_power_is_of_the_board_alone(driver: FakeDriver, client: Client) -> None:
    driver.advance(SECOND_NS, {FIRST: DeviceLoad(watts=400.0)})
    driver.write()
    assert client("nvmlDeviceGetTotalEnergyConsumption(one)") == 400_000
    assert client.error("nvmlDeviceGetTotalEnergyConsumption(small)") == NOT_SUPPORTED
    assert client.error("nvmlDeviceGetAttributes(one)") == NOT_SUPPORTED


@pytest.mark.usefixtures("mig")
def test_gpm_of_a_mig_instance_through_either_call(driver: FakeDriver, client: Client) -> None:
    client("a, b, c, d = [nvmlGpmSampleAlloc() for _ in 'abcd']")
    client("a, c = nvmlGpmSampleGet(small, a), nvmlGpmMigSampleGet(one, 2, c)")
    driver.advance(SECOND_NS, {(FIRST, 9): DeviceLoad(busy=0.5), (FIRST, 2): DeviceLoad(busy=0.75)})
    driver.write()
    client("b, d = nvmlGpmSampleGet(small, b), nvmlGpmMigSampleGet(one, 2, d)")
    assert client("gpm(a, b, 1)") == [[0, 50.0]]
    assert client("gpm(c, d, 1)") == [[0, 75.0]]
    assert client("gpm(c, nvmlGpmSampleGet(part, d), 1)") == [[0, 75.0]]
    assert client.error("gpm(a, d, 1)") == INVALID_ARGUMENT
    assert client("nvmlGpmQueryDeviceSupport(small).isSupportedDevice") == 1
    assert client.error("nvmlGpmMigSampleGet(one, 5, d)") == INVALID_ARGUMENT


def test_handles_go_stale_even_if_the_uuid_comes_back(
    driver: FakeDriver, mig: FakeBoard, client: Client
) -> None:
    mig.repartition(partitioned_board().instances[:1])
    driver.write()
    assert client.error("nvmlDeviceGetName(small)") == INVALID_ARGUMENT
    assert client.error("nvmlDeviceGetName(large)") == INVALID_ARGUMENT
    assert client(f"nvmlDeviceGetName(nvmlDeviceGetHandleByUUID('{MIG_SMALL}'))").endswith("1g.10gb")


def test_events_are_given_once_and_not_replayed(driver: FakeDriver, client: Client) -> None:
    driver.xid(FIRST, 31)
    driver.write()
    client("events = nvmlEventSetCreate()")
    client("nvmlDeviceRegisterEvents(one, nvmlEventTypeXidCriticalError, events)")
    assert client.error("nvmlEventSetWait(events, 1)") == TIMEOUT
    driver.xid(FIRST, 13)
    driver.xid(SECOND, 48)
    driver.event(FIRST, 0x2, 0)
    driver.xid(FIRST, 63, gpu_instance=2)
    driver.write()
    client("first, second = nvmlEventSetWait(events, 1), nvmlEventSetWait(events, 1)")
    assert client("[first.eventType, first.eventData, first.gpuInstanceId]") == [8, 13, 0xFFFFFFFF]
    assert client("[second.eventData, second.gpuInstanceId]") == [63, 2]
    assert client("nvmlDeviceGetUUID(first.device)") == FIRST
    assert client.error("nvmlEventSetWait(events, 1)") == TIMEOUT
    client("nvmlEventSetFree(events)")


def test_a_wait_ends_with_the_event(driver: FakeDriver, client: Client) -> None:
    client("events = nvmlEventSetCreate()")
    client("nvmlDeviceRegisterEvents(one, nvmlDeviceGetSupportedEventTypes(one), events)")
    client.send("nvmlEventSetWait(events, 60000).eventData")
    time.sleep(0.05)
    driver.xid(FIRST, 79)
    driver.boards[0].lost = True
    driver.write()
    assert client.receive() == 79
    assert client.error("nvmlEventSetWait(events, 60000)") == GPU_IS_LOST


def test_events_that_a_board_does_not_have_cannot_be_registered(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].event_types = 0
    driver.write()
    client("events = nvmlEventSetCreate()")
    register = "nvmlDeviceRegisterEvents({}, nvmlEventTypeXidCriticalError, events)"
    assert client.error(register.format("one")) == NOT_SUPPORTED
    client(register.format("two"))


def test_faults_on_one_device_and_on_all(driver: FakeDriver, client: Client) -> None:
    driver.fail("nvmlDeviceGetName", NO_PERMISSION, SECOND)
    driver.fail("nvmlDeviceGetMemoryInfo_v2", 999)
    driver.fail("nvmlDeviceGetHandleByIndex", NO_PERMISSION, FIRST)
    driver.write()
    assert client("nvmlDeviceGetName(one)")
    assert client.error("nvmlDeviceGetName(two)") == NO_PERMISSION
    assert client("nvmlDeviceGetMemoryInfo(one)")["total"] == 80 * GIB
    assert client.error("nvmlDeviceGetMemoryInfo(one, version=nvmlMemory_v2)") == 999
    assert client.error("nvmlDeviceGetHandleByIndex(0)") == NO_PERMISSION
    assert client("nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(1))") == SECOND
    driver.heal("nvmlDeviceGetName", SECOND)
    driver.write()
    assert client("nvmlDeviceGetName(two)") == "Tesla T4"


def test_a_fault_of_an_unknown_function_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(ValueError, match="nvmlDeviceGetTemperature"):
        driver.fail("nvmlDeviceGetTemperature", 3)


def test_a_load_on_an_unknown_device_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(KeyError):
        driver.advance(1, {(FIRST, 3): DeviceLoad(busy=1.0)})


def test_a_hang_blocks_its_function_alone_until_released(driver: FakeDriver, client: Client) -> None:
    driver.hang("nvmlDeviceGetName", FIRST)
    driver.write()
    client("wedged = threading.Thread(target=nvmlDeviceGetName, args=[one]); wedged.start()")
    client("wedged.join(0.1)")
    assert client("wedged.is_alive()")
    assert client("nvmlDeviceGetName(two)") == "Tesla T4"
    assert client("nvmlDeviceGetUUID(one)") == FIRST
    driver.release("nvmlDeviceGetName", FIRST)
    driver.write()
    client("wedged.join(60)")
    assert client("wedged.is_alive()") is False


def test_a_lost_board_says_so_to_every_call(driver: FakeDriver, client: Client) -> None:
    driver.boards[0].lost = True
    driver.write()
    assert client("nvmlDeviceGetCount()") == 2
    for call in ("Name(one)", "MemoryInfo(one)", "HandleByIndex(0)", f"HandleByUUID('{FIRST}')"):
        assert client.error(f"nvmlDeviceGet{call}") == GPU_IS_LOST
    assert client("nvmlDeviceGetName(two)") == "Tesla T4"


def test_sessions_end_with_the_driver(driver: FakeDriver, client: Client) -> None:
    driver.advance(SECOND_NS)
    driver.loaded = False
    driver.write()
    assert client.error("nvmlDeviceGetCount()") == DRIVER_NOT_LOADED
    driver.reload()
    driver.write()
    assert client.error("nvmlDeviceGetCount()") == DRIVER_NOT_LOADED
    client("nvmlShutdown()")
    assert client.error("nvmlDeviceGetCount()") == UNINITIALIZED
    client("nvmlInit()")
    assert client("nvmlDeviceGetTotalEnergyConsumption(nvmlDeviceGetHandleByIndex(0))") == 0


def test_no_driver(driver: FakeDriver, library: Path) -> None:
    driver.loaded = False
    driver.write()
    with Client(driver, library) as client:
        assert client.error("nvmlInit()") == DRIVER_NOT_LOADED
    driver.state_file.unlink()
    with Client(driver, library) as client:
        assert client.error("nvmlInit()") == DRIVER_NOT_LOADED


def test_older_drivers_lack_functions(driver: FakeDriver, libraries: Path) -> None:
    bare = build_double(libraries, "GPM", "SAMPLES", "PROCESS_UTILIZATION", "FIELD_VALUES")
    with Client(driver, bare) as client:
        client("nvmlInit()")
        client("one = nvmlDeviceGetHandleByIndex(0)")
        assert client.error("nvmlGpmQueryDeviceSupport(one)") == FUNCTION_NOT_FOUND
        assert client.error("nvmlDeviceGetSamples(one, 1, 0)") == FUNCTION_NOT_FOUND
        assert client.error("nvmlDeviceGetProcessUtilization(one, 0)") == FUNCTION_NOT_FOUND
        assert client.error("nvmlDeviceGetFieldValues(one, [83])") == FUNCTION_NOT_FOUND
        assert client("nvmlDeviceGetUtilizationRates(one)") == {"gpu": 0, "memory": 0}


def test_an_unknown_group_is_refused(libraries: Path) -> None:
    with pytest.raises(ValueError, match="EVENTS"):
        build_double(libraries, "EVENTS")


def test_the_last_of_many_changes_of_the_same_length_is_seen(driver: FakeDriver, client: Client) -> None:
    for milliwatts in range(100_000, 100_200):
        for watts in (milliwatts / 1000, 200.0, milliwatts / 1000 + 100, milliwatts / 1000):
            driver.boards[0].watts = watts
            driver.write()
        assert client("nvmlDeviceGetPowerUsage(one)") == milliwatts


def test_a_busy_node_is_written_and_read(driver: FakeDriver, client: Client) -> None:
    """Eight GPUs with eight processes and 120 samples each, written anew every second."""
    driver.boards = [FakeBoard(f"GPU-{index}") for index in range(8)]
    for board in driver.boards:
        board.processes = [FakeProcess(1000 + process, GIB) for process in range(8)]
        board.samples.extend(UtilizationSample(10**15 + at, 50) for at in range(120))
    loads = {b.uuid: DeviceLoad(busy=0.5, processes={p.pid: 6.0 for p in b.processes}) for b in driver.boards}
    for _ in range(20):
        driver.advance(SECOND_NS, loads)
        driver.write()
        assert client("nvmlDeviceGetCount()") == 8
