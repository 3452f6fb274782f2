"""Whose series say what a GPU did: NVIDIA's dcgm-exporter, AMD's device-metrics-exporter, OpenTelemetry.

A dialect is a table of names with their meaning and unit, and what its labels say: of which device a row is,
and whether its value is a measurement of that device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucost.contract import amd_exporter, dcgm, otel_hardware
from gpucost.contract.dcgm import DcgmField, DcgmName

_Labels = Mapping[str, str]


def _first(labels: _Labels, names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _dcgm_device(labels: _Labels) -> tuple[str, str] | None:
    uuid = _first(labels, dcgm.UUID_LABELS)
    return (uuid, _first(labels, dcgm.INSTANCE_LABELS)) if uuid else None


def _dcgm_product(labels: _Labels) -> tuple[str, str]:
    return _first(labels, dcgm.MODEL_LABELS), _first(labels, dcgm.PROFILE_LABELS)


def _always(field: DcgmField, labels: _Labels) -> bool:
    del field, labels
    return True


def _never(labels: _Labels) -> None:
    del labels


@dataclass(frozen=True)
class DeviceDialect:
    """``what`` exports it. ``names`` are in capitals, ``spelled`` as exported. ``keys`` are labels: each
    series of a device has at least one of them.

    ``device`` is the GPU and the number of the part of it (None: no GPU's row), ``product`` its model and MIG
    profile, ``parts`` how many parts the GPU has where no profile says it. ``is_measured`` is False for a
    value that is none. ``names_pods``: rows name the pod that holds the device.
    """

    what: str
    names: Mapping[str, DcgmName]
    spelled: tuple[str, ...]
    keys: tuple[str, ...]
    device: Callable[[_Labels], tuple[str, str] | None]
    product: Callable[[_Labels], tuple[str, str]]
    parts: Callable[[_Labels], int | None] = _never
    is_measured: Callable[[DcgmField, _Labels], bool] = _always
    names_pods: bool = True

    def meaning(self, name: str) -> DcgmName:
        """Of one of its names, in any case."""
        return self.names[name.upper()]


DCGM = DeviceDialect(
    "dcgm-exporter",
    dcgm.NAMES,
    tuple(dict.fromkeys(each for name in dcgm.NAMES for each in (name, name.lower()))),
    dcgm.UUID_LABELS,
    _dcgm_device,
    _dcgm_product,
)
AMD = DeviceDialect(
    "AMD's device-metrics-exporter",
    amd_exporter.NAMES,
    tuple(name.lower() for name in amd_exporter.NAMES),
    amd_exporter.KEYS,
    amd_exporter.device_of,
    amd_exporter.product_of,
    amd_exporter.parts_of,
    amd_exporter.is_measured,
)
OTEL = DeviceDialect(
    "OpenTelemetry",
    otel_hardware.NAMES,
    tuple(name.lower() for name in otel_hardware.NAMES),
    otel_hardware.KEYS,
    otel_hardware.device_of,
    otel_hardware.product_of,
    is_measured=otel_hardware.is_measured,
    names_pods=False,
)
OTHERS = (AMD, OTEL)
"""Those that no gpucost exporter reads on the node itself."""
DIALECTS = (DCGM, *OTHERS)
"""The best first: a pod's use is that of the first which names it."""
