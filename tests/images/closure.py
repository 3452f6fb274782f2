"""What an image holds: the packages that an extra of gpucost needs, by the metadata of what is installed."""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_TEXT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
_PROJECT = tomllib.loads(_TEXT)["project"]


def _own(extra: str) -> list[str]:
    """What gpucost needs, as pyproject.toml says now: an installation may be older."""
    found = _PROJECT["optional-dependencies"][extra] if extra else _PROJECT["dependencies"]
    return list(found)


def closure(extra: str) -> dict[str, Distribution]:
    """Packages by name that ``gpucost[extra]`` brings in on this machine, gpucost itself left out."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [("gpucost", ""), *(("gpucost", name) for name in extra.split(","))]
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        package = found[name] = distribution(name)
        for line in _own(wanted) if name == "gpucost" else package.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": wanted}):
                other = canonicalize_name(needed.name)
                left += [(other, ""), *((other, each) for each in needed.extras)]
    del found["gpucost"]
    return found


def installed_bytes(packages: dict[str, Distribution]) -> int:
    """Size of what their wheels brought, by their RECORDs; without compiled bytecode."""
    files = (each for package in packages.values() for each in package.files or ())
    return sum(each.size or 0 for each in files)


def modules_of(packages: dict[str, Distribution]) -> frozenset[str]:
    """Top-level names that may be imported where only ``packages`` are installed."""
    names = set()
    for package in packages.values():
        for file in package.files or ():
            first = file.parts[0]
            if not first.endswith((".dist-info", "..", "__pycache__", ".pth")) and first != "..":
                names.add(first.partition(".")[0])
    return frozenset(names)
