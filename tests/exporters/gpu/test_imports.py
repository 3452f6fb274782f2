"""What the exporter's two processes load: they run on every GPU node, and stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gpucost_gpu_exporter

PACKAGE = Path(gpucost_gpu_exporter.__file__).parent
# Of the service, of the tests, and of the making of the kubelet's messages. (grpc itself loads the empty
# package grpc_tools where it is installed, so it is the compiler in it that is looked for.)
NEVER = {
    *("pandas", "numpy", "pyarrow", "sqlalchemy", "sqlmodel"),
    *("fastapi", "httpx", "httpx2", "grpc_tools.protoc", "pytest"),
}
NOT_IN_THE_DRIVER = {"grpc", "google.protobuf", "prometheus_client", "pydantic", "asyncio"}
DRIVER = "gpucost_gpu_exporter.driver.__main__"


def loaded(*modules: str) -> set[str]:
    """All modules that a new interpreter has once it has imported ``modules``."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_exporter_loads_nothing_of_the_service() -> None:
    found = loaded("gpucost_gpu_exporter.cli", "gpucost_gpu_exporter.assemble", DRIVER)
    assert {"grpc", "prometheus_client", "pynvml"} <= found
    assert not found & NEVER
    assert not [name for name in found if name.startswith(("gpucost.telemetry", "gpucost.service"))]


def test_the_driver_process_loads_nvml_and_little_else() -> None:
    found = loaded(DRIVER)
    assert "pynvml" in found
    assert not found & (NEVER | NOT_IN_THE_DRIVER)


def test_the_exporter_s_own_process_does_not_load_nvml() -> None:
    assert "pynvml" not in loaded("gpucost_gpu_exporter.cli", "gpucost_gpu_exporter.assemble")


def test_nvml_is_imported_in_the_driver_package_only() -> None:
    users = {
        path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if "pynvml" in imports(path)
    }
    assert users == {"driver"}


def imports(path: Path) -> set[str]:
    """The top names of what a file imports, wherever in it."""
    return set(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
