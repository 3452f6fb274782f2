"""What each image may contain: an explicit list, a size, and entry points that work with nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.closure import closure, installed_bytes, modules_of

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).parent / "allowed"
MIB = 1 << 20
# Extra, modules that are imported, and the most that the packages may weigh in MiB.
IMAGES = {
    "gpucost": (
        "server,chat,lake,mcp",
        ("gpucost.cli", "gpucost.api.runtime", "gpucost.cli.commands.serve", "gpucost.api.tools.tool_server"),
        530,
    ),
    "gpucost-gpu-exporter": ("exporter", ("gpucost_gpu_exporter.cli", "gpucost_gpu_exporter.driver"), 40),
    "gpucost-queue-collector": ("collector", ("gpucost_queue_collector.cli",), 50),
}
HEAVY = {"pandas", "numpy", "pyarrow", "sqlalchemy", "sqlmodel", "alembic", "psycopg", "fastapi", "uvicorn"}

_REFUSING = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        is_python = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if top not in ALLOWED and not is_python:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

ALLOWED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Refuse())
for name in sys.argv[2].split(","):
    importlib.import_module(name)
"""


def allowed(image: str) -> set[str]:
    text = (ALLOWED / f"{image}.txt").read_text(encoding="utf-8")
    return {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}


@pytest.mark.parametrize("image", IMAGES)
def test_the_packages_are_those_of_the_list(image: str) -> None:
    """Another one is a decision: look at what it is, then add it to the list."""
    assert set(closure(IMAGES[image][0])) == allowed(image)


@pytest.mark.parametrize("image", ["gpucost-gpu-exporter", "gpucost-queue-collector"])
def test_the_exporters_carry_no_pandas_and_no_sql(image: str) -> None:
    assert not allowed(image) & HEAVY


@pytest.mark.parametrize("image", IMAGES)
def test_its_packages_weigh_no_more_than_they_may(image: str) -> None:
    extra, _, most = IMAGES[image]
    assert installed_bytes(closure(extra)) < most * MIB


def pins(text: str) -> dict[str, str]:
    """Version by name, of lines such as ``PyYAML==6.0.3``."""
    found = (line.split()[0].partition("==") for line in text.splitlines() if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in found}


@pytest.mark.parametrize("image", IMAGES)
def test_all_of_them_have_an_exact_version_and_hashes(image: str) -> None:
    """``make hashes`` writes them anew."""
    place = {"gpucost": "gpucost"}.get(image, f"exporters/{image.replace('-', '_')}")
    text = (ROOT / place / "requirements.txt").read_text(encoding="utf-8")
    found = pins(text)
    assert set(found) == set(closure(IMAGES[image][0]))
    everything = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert found.items() <= everything.items(), "not the versions that the tests run with"
    parts = re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(found)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", part) for part in parts)
    assert "://" not in text, "where from is a matter of whoever installs"


@pytest.mark.parametrize("image", IMAGES)
def test_its_entry_points_work_with_nothing_else(image: str) -> None:
    extra, modules, _ = IMAGES[image]
    own = {"gpucost", "gpucost_exporter_base", "gpucost_gpu_exporter", "gpucost_queue_collector"}
    names = modules_of(closure(extra)) | own
    found = run(names, modules)
    assert found.returncode == 0, found.stderr[-500:]


def test_a_package_that_is_not_in_the_image_would_be_seen() -> None:
    own = {"gpucost", "gpucost_exporter_base", "gpucost_gpu_exporter"}
    names = (modules_of(closure("exporter")) | own) - {"prometheus_client"}
    found = run(names, ("gpucost_gpu_exporter.cli",))
    assert "prometheus_client is not in the image" in found.stderr


def run(names: frozenset[str] | set[str], modules: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _REFUSING, ",".join(sorted(names)), ",".join(modules)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
