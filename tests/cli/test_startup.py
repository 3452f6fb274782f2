"""How commands start: what they import, and Ctrl-C while they do. No test here asserts a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"alembic", "fastapi", "numpy", "pandas", "pyarrow", "sqlalchemy", "sqlmodel"}
EXAMPLES = ROOT / "docs" / "examples"
ADVISE = ("advise", "-f", str(EXAMPLES / "waits.yaml"), "--state", str(EXAMPLES / "cluster.yaml"))
# In place of the script that is installed: so that it says at its end what was imported.
_SAYING = """
import atexit, json, sys
from gpucost.cli import main
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
main()
"""
# Ctrl-C at the import of one module, wherever that is asked for.
_INTERRUPTING = """
import os, signal, sys
wanted = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from gpucost.cli import main
main()
"""


def _run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _loaded(found: subprocess.CompletedProcess[str]) -> set[str]:
    assert found.returncode == 0, found.stderr
    return set(json.loads(found.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    ["gpucost.service.settings.model", "gpucost.service.settings.loader", "gpucost.service.wiring.inputs"],
)
def test_settings_need_no_frames_and_no_database(tmp_path: Path, module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    loaded = _loaded(_run(tmp_path, code))
    assert module in loaded
    assert not HEAVY & loaded


def test_a_worker_of_a_backfill_starts_without_a_database_and_without_a_server_to_ask(tmp_path: Path) -> None:
    module = "gpucost.service.wiring.ingest_workers"
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    loaded = _loaded(_run(tmp_path, code))
    assert {"pandas", "gpucost.telemetry.recorded_source"} <= loaded
    assert not {"alembic", "fastapi", "sqlalchemy", "sqlmodel", "requests"} & loaded


def test_the_service_starts_without_the_protocol_of_assistants(tmp_path: Path) -> None:
    code = "import json, sys, gpucost.api.runtime; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    assert not {"mcp", "mcp_types"} & _loaded(_run(tmp_path, code))


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("advise", "--help"), ("mcp", "--help")])
def test_what_a_command_is_called_and_takes_is_said_without_what_it_runs(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    found = _run(tmp_path, _SAYING, *words)
    assert found.stdout
    assert not (HEAVY | {"gpucost.settings.types", "mcp", "rich.console", "yaml"}) & _loaded(found)


@pytest.mark.parametrize(
    "words",
    [
        ADVISE,
        (*ADVISE, "--no-suggestions", "--namespace", "research"),
        (*ADVISE, "--format", "json"),
        (*ADVISE, "--apply", "1"),
        (*ADVISE, "--at", "2026-07-06T12:00:00Z"),
    ],
    ids=["text", "bare", "json", "apply", "at"],
)
def test_advise_on_files_needs_no_frames_no_database_and_no_way_to_a_cluster(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    found = _run(tmp_path, _SAYING, *words)
    assert found.stdout
    assert not (HEAVY | {"httpx2", "lightkube", "requests"}) & _loaded(found)


def test_explain_on_files_needs_no_frames_and_no_database(tmp_path: Path) -> None:
    words = ("explain", "workload/nothing", "--state", str(EXAMPLES / "cluster.yaml"))
    found = _run(tmp_path, _SAYING, *words)
    assert found.returncode == 2
    assert "gpucost: " in found.stderr.splitlines()[0]
    assert not HEAVY & set(json.loads(found.stderr.splitlines()[-1]))


def test_advise_reads_the_ledger_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "gpucost.db").touch()
    assert "sqlalchemy" in _loaded(_run(tmp_path, _SAYING, *ADVISE))


@pytest.mark.parametrize(
    "module",
    [
        "gpucost.cli.terminal.exit_codes",
        "gpucost.cli.application",
        "typer",
        "typer.core",
        "gpucost.cli.advise.advise_command",
        "gpucost.domain.errors",
        "gpucost.cli.commands.serve",
        "gpucost.cli.commands.reports",
    ],
)
@pytest.mark.parametrize("words", [("--version",), ("--help",), ADVISE], ids=["version", "help", "advise"])
def test_ctrl_c_while_it_starts_ends_it_without_a_word(
    tmp_path: Path, module: str, words: tuple[str, ...]
) -> None:
    found = _run(tmp_path, _INTERRUPTING, module, *words)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "module", ["pydantic", "gpucost.service.settings.model", "gpucost.kube.manifests", "rich.text", "yaml"]
)
def test_ctrl_c_while_a_command_imports_what_it_runs_is_no_traceback(tmp_path: Path, module: str) -> None:
    found = _run(tmp_path, _INTERRUPTING, module, *ADVISE)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_who_ignores_ctrl_c_goes_on_ignoring_it(tmp_path: Path) -> None:
    """As under nohup, or behind an ``&`` of a shell."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _INTERRUPTING
    found = _run(tmp_path, code, "typer", "--version")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("gpucost ")
