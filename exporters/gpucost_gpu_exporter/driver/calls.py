"""One call into NVML, and what its failure means: for one reading, for the GPU, or for the whole driver."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

OUT_OF_RANGE = "out_of_range"
CORRUPT = "CORRUPT"
INTERNAL = "INTERNAL"
LARGEST_COUNT = 2**63 - 1
"""A counter of the driver above this is one of its blank values."""
UNSUPPORTED = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION"})
_DRIVER_GONE = frozenset(
    {"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"}
)


class NvmlFailure(Exception):
    """``code`` is the name of the NVML error without its prefix."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class NvmlRefusal(NvmlFailure):
    """One thing could not be read; the rest of the GPU can."""


class GpuLost(NvmlFailure):
    """The GPU no longer answers; the others do."""


class DriverGone(NvmlFailure):
    """The driver is not there, or is not the one this process was started with; only a new process helps."""


@dataclass(slots=True)
class DriverLook:
    """One look at the node: the parent's clock and what is asked for; ``dropped`` counts readings thrown
    away, by reason."""

    now_ns: int
    processes: bool
    dropped: Counter[str] = field(default_factory=Counter)

    def drop(self) -> None:
        """Count one reading outside its range."""
        self.dropped[OUT_OF_RANGE] += 1


class GpuErrorGuard:
    """Keeps an error of one GPU from ending the look at the others; each GPU's is logged once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def code(self, subject: str, error: Exception) -> str:
        """The reason why ``subject`` counts as lost: the name of the driver's error, else INTERNAL. Raises
        DriverGone again."""
        if isinstance(error, DriverGone):
            raise error
        if isinstance(error, NvmlFailure):
            return error.code
        if subject not in self._told:
            self._told.add(subject)
            print(f"{subject}:", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
        return INTERNAL


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """The function's answer. Raises NvmlRefusal, GpuLost or DriverGone.

    What nvidia-ml-py cannot decode (a name that is not UTF-8, a type of value it does not know) is CORRUPT.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code = code_name(error.value)
        if code in _DRIVER_GONE:
            raise DriverGone(code) from error
        raise (GpuLost if code == "GPU_IS_LOST" else NvmlRefusal)(code) from error
    except (ValueError, TypeError, LookupError) as error:
        raise NvmlRefusal(CORRUPT) from error


def call_newest(*choices: tuple[Any, ...]) -> Any:
    """The answer of the first function that this driver's library has; each choice is (function, arguments…).

    nvidia-ml-py raises FUNCTION_NOT_FOUND for a symbol that the library lacks.
    """
    for choice in choices[:-1]:
        try:
            return call(*choice)
        except NvmlRefusal as refusal:
            if refusal.code != "FUNCTION_NOT_FOUND":
                raise
    return call(*choices[-1])


def code_name(value: int) -> str:
    """``GPU_IS_LOST`` for 15, ``SUCCESS`` for 0; ``ERROR_77`` for a code newer than nvidia-ml-py."""
    return _CODES.get(value, f"ERROR_{value}")


def value_of(kind: int, value: Any) -> int | float:
    """The member of an ``nvmlValue_t`` that ``nvmlValueType_t`` names. Raises NvmlRefusal for an
    unknown type."""
    if not 0 <= kind < len(_MEMBERS):
        raise NvmlRefusal(CORRUPT)
    found: int | float = getattr(value, _MEMBERS[kind])
    return found


_PREFIX = "NVML_ERROR_"
_CODES: Mapping[int, str] = {0: "SUCCESS"} | {
    value: name.removeprefix(_PREFIX) for name, value in vars(pynvml).items() if name.startswith(_PREFIX)
}
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
