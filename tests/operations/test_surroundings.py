"""What surrounds the process makes no difference; and it leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from gpucost.api.runtime import ServiceParts, ServiceRuntime
from gpucost.attribution.teams import TeamRules
from gpucost.cli.application import app
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.model import Settings, SourceSettings
from gpucost.service.wiring.inputs import load_book
from gpucost.service.wiring.source import open_source
from gpucost.telemetry.recorded_source import record
from tests.operations.serving import ROOT, Served, descriptors
from tests.service.worlds import NOW_MS, frames

ODD = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "TZ": "Pacific/Kiritimati"}
FORMS = ("json", "csv", "html")
STARTS = 200
SPAN = ("--from", "2026-10-01", "--to", "2026-10-02")
# All of it in one process, since most of a command's time is its imports.
_COMMANDS = """
import json, sys
from gpucost.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["gpucost", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""
# Nothing can be written but below $1, and no other machine can be reached: not even loopback is up.
_ALONE = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / || exit 99
cd "$2" && ! touch here 2>/dev/null || exit 98
shift 2; exec "$@"
"""


def words_of(found: Served, config: Path) -> list[list[str]]:
    given = ["--config", str(config)]
    reports = [
        [*given, "report", "2026-10", "--format", form, "-o", str(found.folder / f"report.{form}")]
        for form in FORMS
    ]
    return [[*given, "ingest", *SPAN], *reports]


@pytest.mark.slow
@pytest.mark.fault(71)
def test_read_only_root_no_network_and_another_locale_and_zone_give_the_same_bytes(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-nm", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("row 71 is NOT checked here: a network of its own and a read-only root need unshare -nm")
    usual, odd = tmp_path / "usual", tmp_path / "odd"
    usual.mkdir()
    odd.mkdir()
    here, there = Served(usual, {}), Served(odd, {})
    for words in words_of(here, here.config):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment |= {**ODD, "PYTHONPATH": str(ROOT), "HOME": "/", "TMPDIR": str(odd)}
    commands = [sys.executable, "-c", _COMMANDS, json.dumps(words_of(there, there.config))]
    ended = subprocess.run(
        [unshare, "-nm", "sh", "-c", _ALONE, "sh", str(odd), str(ROOT), *commands],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")
    for form in FORMS:
        name = f"report.{form}"
        assert (odd / name).read_bytes() == (usual / name).read_bytes(), form
    for each in (here, there):
        each.close()


@pytest.mark.slow
@pytest.mark.fault(73)
def test_two_hundred_starts_leave_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    record(tmp_path / "recording", frames())
    settings = Settings(
        source=SourceSettings(kind="recorded", path=tmp_path / "recording"),
        api=ApiSettings(auth="off"),
    )
    book = load_book(None)

    def once(url: str) -> None:
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            parts = ServiceParts(
                settings,
                book,
                TeamRules.default(),
                ledger,
                lambda stopped: open_source(settings, book, lambda: NOW_MS, stopped=stopped),
                lambda: NOW_MS,
            )
            running = ServiceRuntime.of(parts)
            running.stop.set()  # nothing is to be done, only begun and ended
            running.start()
            with TestClient(running.app, base_url="http://localhost") as client:
                assert client.get("/healthz").status_code == 200
            running.close()

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for _ in range(3):
        once(url)
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    for _ in range(STARTS):
        once(url)
    gc.collect()
    assert descriptors() <= before + 2
    assert threading.active_count() <= threads
