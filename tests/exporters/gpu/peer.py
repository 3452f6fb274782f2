"""What a dcgm-exporter on the node of the scripted hour would have printed at each scrape.

Our own generator after what is documented and reported of dcgm-exporter 4.8.2 with its default list of
counters; nothing of it was read off a running one. The rules, and where they are taken from, stand in
docs/gpu-comparison.md. Where a report leaves a choice, the one that flatters the figures is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from tests.exporters.gpu import hour
from tests.exporters.gpu.hour import ScriptedPod
from tests.support.nvml.driver import DeviceLoad

COLLECT_EVERY = 30
SCRAPE_EVERY = 15
SCRAPE_AT = 7
BACK_AT = hour.RESTART_AT + hour.RESTART_FOR
# The counter began when the driver was loaded, long before the hour.
_JOULES_BEFORE = 5_000_000.0
BOARDS = (hour.WHOLE, hour.MIG, hour.SHARED, hour.LOST)
_TARGET = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-7xk2p", "container": "exporter"}


class Setting(Enum):
    """What KUBERNETES_VIRTUAL_GPUS is set to."""

    DEFAULT = "default"
    VIRTUAL = "virtual"


@dataclass(frozen=True)
class Device:
    """A row's entity: a GPU (``instance`` 0) or one of its MIG slices, which have the GPU's UUID."""

    board: str
    instance: int = 0

    def labels(self) -> dict[str, str]:
        index = str(BOARDS.index(self.board))
        found = {
            "gpu": index,
            "UUID": self.board,
            "device": f"nvidia{index}",
            "modelName": "NVIDIA H100 80GB HBM3",
        }
        if self.instance:
            found |= {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": str(self.instance)}
        return found | {"Hostname": "node-1", "DCGM_FI_DRIVER_VERSION": "580.95.05"}

    def load(self, second: int) -> DeviceLoad:
        """What runs on it in the second that begins at ``second``."""
        key = (self.board, self.instance) if self.instance else self.board
        return _loads(second).get(key, DeviceLoad())


DEVICES = (
    Device(hour.WHOLE),
    *(Device(hour.MIG, number) for number in hour.SLICES),
    Device(hour.SHARED),
    Device(hour.LOST),
)


def collected_at(second: int) -> int | None:
    """When the values of a scrape at ``second`` were collected; None while the exporter is away."""
    if hour.RESTART_AT <= second < BACK_AT:
        return None
    began = BACK_AT if second >= BACK_AT else 0
    return second - (second - began) % COLLECT_EVERY


def page(second: int, setting: Setting, devices: Sequence[Device] = DEVICES) -> str | None:
    """The text of a scrape at ``second`` of the hour; None while the exporter is away."""
    at = collected_at(second)
    if at is None:
        return None
    lines = [
        f"{metric}{_written(device.labels() | holder)} {value:.6f}"
        for device in devices
        if not (device.board == hour.LOST and at >= hour.LOST_AT)
        for metric, device_value in _values(device, at).items()
        for holder, value in _rows(metric, device, device_value, second, setting)
    ]
    return "\n".join(lines) + "\n"


def scrapes(start: int) -> Iterator[tuple[int, str]]:
    """Every scrape of the hour that begins at ``start`` (seconds since 1970), as Prometheus keeps it.

    The job says the setting; of the GPU held whole there is also a job per other phase of the scrapes.
    """
    whole = [device for device in DEVICES if device.board == hour.WHOLE]
    for phase in range(SCRAPE_EVERY):
        for second in range(phase, hour.HOUR, SCRAPE_EVERY):
            for setting in Setting if phase == SCRAPE_AT else [Setting.DEFAULT]:
                text = page(second, setting, DEVICES if phase == SCRAPE_AT else whole)
                if text is None:
                    continue
                job = job_of(setting, phase)
                yield start + second, "\n".join(_scraped(line, job) for line in text.splitlines()) + "\n"


def job_of(setting: Setting, phase: int = SCRAPE_AT) -> str:
    """The job of the scrapes at ``phase`` seconds after each quarter of a minute."""
    return f"dcgm-{setting.value}" if phase == SCRAPE_AT else f"dcgm-{setting.value}-{phase}"


@cache
def _values(device: Device, at: int) -> Mapping[str, float]:
    """The device's own figures as collected at ``at``: the second before it, its counters, means since."""
    last = device.load(at - 1)
    board = Device(device.board)
    found = {
        "DCGM_FI_DEV_GPU_TEMP": 45.0,
        "DCGM_FI_DEV_POWER_USAGE": board.load(at - 1).watts,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1000 * (_JOULES_BEFORE + _joules(device.board)[at]),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _mean_busy(device, at),
    }
    if not device.instance:
        found["DCGM_FI_DEV_GPU_UTIL"] = round(100 * last.busy)
    return found


def _rows(
    metric: str, device: Device, value: float, second: int, setting: Setting
) -> Iterator[tuple[dict[str, str], float]]:
    """The rows that a device's figure becomes: who it is said to be of, and what it says."""
    holders = [pod for pod in hour.PODS if _is_on(pod, device) and pod.runs(second)]
    if setting is Setting.DEFAULT:
        # The map from device to pod keeps what was put last.
        yield (_attributes(holders[-1]) if holders else {}), value
        return
    is_split = metric == "DCGM_FI_DEV_GPU_UTIL"
    if is_split or not holders:
        yield {}, value
    for pod in holders:
        own = 100 * pod.sm if is_split and device.board == hour.SHARED else value
        yield _attributes(pod, virtual=True), own


def _attributes(pod: ScriptedPod, virtual: bool = False) -> dict[str, str]:
    found = {"container": "main", "namespace": "team", "pod": pod.name}
    replica = pod.device.partition("::")[2]
    return found | {"vgpu": replica} if virtual and replica else found


def _is_on(pod: ScriptedPod, device: Device) -> bool:
    return pod.board == device.board and pod.instance == device.instance


def _mean_busy(device: Device, at: int) -> float:
    """The mean since the collection before; of the last second where there was none before."""
    before = collected_at(at - 1) if at not in (0, BACK_AT) else None
    spans = range(at - 1 if before is None else before, at)
    return sum(device.load(second).busy for second in spans) / len(spans)


@cache
def _loads(second: int) -> Mapping[str | tuple[str, int], DeviceLoad]:
    return hour.loads(second)


@cache
def _joules(board: str) -> Sequence[float]:
    """What the GPU has drawn since the hour began, by second."""
    total, found = 0.0, [0.0]
    for second in hour.seconds():
        total += Device(board).load(second).watts
        found.append(total)
    return found


def _scraped(line: str, job: str) -> str:
    """A line as it is kept with ``honor_labels: false``: labels that the target has too become exported_*."""
    for label in _TARGET:
        line = line.replace(f',{label}="', f',exported_{label}="')
    name, rest = line.split("{", 1)
    return f"{name}{_written({'job': job, **_TARGET})[:-1]},{rest}"


def _written(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
