"""A new installation: the service says that there is no key yet, and takes the first key while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.telemetry.recorded_source import record
from tests.service.worlds import frames
from tests.support.ports import free_port
from tests.support.service_process import service


@pytest.mark.slow
@pytest.mark.fault(49)
def test_the_first_key_is_made_beside_the_ledger_of_a_service_that_runs(tmp_path: Path) -> None:
    record(tmp_path / "recording", frames())
    port = free_port()
    settings = {
        "ledger": {"url": f"sqlite:///{tmp_path / 'ledger.db'}"},
        "source": {"kind": "recorded", "path": str(tmp_path / "recording")},
        "detectors": {"enabled": False},
    }

    def gpucost(*words: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, list(words), input=typed)

    running = service(tmp_path, settings, port)
    running.start()
    try:
        config = ("--config", str(tmp_path / "service.yaml"))
        made = gpucost(*config, "key", "add", "admin", "--role", "admin")
        assert made.exit_code == ExitCode.OK, made.stderr
        time.sleep(1)  # what was read of the keys is believed for that long
        login = gpucost("login", f"http://127.0.0.1:{port}", typed=made.stdout)
        assert login.stdout == f"http://127.0.0.1:{port}: admin, admin in all clusters (key)\n", login.stderr
        revoked = gpucost("key", "revoke", "admin")
        assert revoked.exit_code == ExitCode.OK, revoked.stderr
        refused = gpucost("whoami")
        assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    finally:
        running.stop()
    log = (tmp_path / "service.log").read_text(encoding="utf-8")
    assert (
        "nobody may ask the API yet: there is no key, and no issuer of tokens; gpucost key add admin" in log
    )
    assert made.stdout.strip().removeprefix("gpc_admin_") not in log
