"""Compile the stand-in ``libnvidia-ml.so.1`` from the C files beside this module."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

GROUPS = frozenset({"GPM", "SAMPLES", "PROCESS_UTILIZATION", "FIELD_VALUES"})
NAME = "libnvidia-ml.so.1"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
FLAGS = ["-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,-soname,{NAME}", *WARNINGS]


def build_double(folder: Path, *without: str) -> Path:
    """Build the library under ``folder``; return the directory to put in ``LD_LIBRARY_PATH``.

    ``without`` are groups of functions (``GPM``, ``SAMPLES``, ``PROCESS_UTILIZATION``, ``FIELD_VALUES``)
    that an older driver does not have. A folder that has the variant already is left as it is, so with a
    folder of the test session each variant is compiled once. Skips the test if there is no gcc. Raises
    ``ValueError`` for an unknown group, ``RuntimeError`` with the compiler's words if it fails.
    """
    unknown = set(without) - GROUPS
    if unknown:
        raise ValueError(f"not a group of functions: {', '.join(sorted(unknown))}")
    target = folder / "-".join(["nvml", *sorted(set(without))])
    if not (target / NAME).exists():
        _compile(target, without)
    return target


def _compile(target: Path, without: tuple[str, ...]) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip(
            "gcc is not installed, so there is no driver library to test with (Debian: gcc, libc6-dev)"
        )
    sources = sorted(str(source) for source in Path(__file__).parent.glob("*.c"))
    target.mkdir(parents=True, exist_ok=True)
    fresh = target / f"{NAME}.new"
    defines = [f"-DWITHOUT_{group}" for group in without]
    command = [compiler, *FLAGS, *defines, *sources, "-o", str(fresh), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gcc refused the driver library: {done.stderr}")
    fresh.rename(target / NAME)
