"""Whether the exporter is well, as /healthz and /readyz say, by the clock that cannot be set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucost_exporter_base.endpoint import Route, parse
from gpucost_gpu_exporter import assemble as module
from gpucost_gpu_exporter.exporter import ExporterClock
from gpucost_gpu_exporter.settings import ExporterSettings
from gpucost_gpu_exporter.state_file import ExporterState, StateFile

SECOND = 10**9


class Now:
    """Both clocks, set by hand."""

    boot_s = 1_000
    wall_s = 1_793_491_200

    def clock(self) -> ExporterClock:
        return ExporterClock(lambda: self.boot_s * SECOND, lambda: self.wall_s * 1_000)


def _settings(folder: Path) -> ExporterSettings:
    """Of an exporter on its own: no API server, no kubelet that answers, no state."""
    return ExporterSettings(
        listen_host="127.0.0.1",
        kubernetes="off",
        kubelet_socket=folder / "none.sock",
        state_dir=None,
        node="gpu-1",
    )


def _said(routes: Mapping[str, Route], path: str) -> tuple[int, bytes]:
    answer = routes[path](parse(f"GET {path} HTTP/1.1\r\n\r\n".encode()))
    return answer.status, answer.body


def test_health_goes_by_the_time_since_boot_and_not_by_the_clock_on_the_wall(tmp_path: Path) -> None:
    now = Now()
    settings = _settings(tmp_path)
    made = module.assemble(settings, {"LD_LIBRARY_PATH": ""}, StateFile(None, ""), now.clock())
    routes = module._routes(made.exporter, settings, now.clock())
    try:
        assert _said(routes, "/healthz") == (200, b"ok\n")
        assert _said(routes, "/readyz") == (503, b"collection: no collection yet\n")
        made.exporter.collect()
        now.wall_s += 86_400  # the clock was set
        assert _said(routes, "/healthz") == _said(routes, "/readyz") == (200, b"ok\n")
        now.wall_s -= 2 * 86_400
        now.boot_s += 70  # 30 intervals, and what one look may take when the driver has just been started
        assert _said(routes, "/healthz")[0] == 200
        now.boot_s += 1
        assert _said(routes, "/healthz") == (503, b"collection: no collection for 71 s\n")
        assert _said(routes, "/readyz")[0] == 503
    finally:
        made.close()


def test_ready_only_once_the_page_is_there(tmp_path: Path) -> None:
    """A disk may be slow at the first save: a client that gets "ready" meanwhile would read no counter."""
    said = []

    class SlowDisk(StateFile):
        def save(self, state: ExporterState) -> None:
            said.append((_said(routes, "/readyz")[0], made.exporter.source.latest))
            super().save(state)

    settings = _settings(tmp_path)
    made = module.assemble(settings, {"LD_LIBRARY_PATH": ""}, SlowDisk(None, ""), Now().clock())
    routes = module._routes(made.exporter, settings, Now().clock())
    try:
        made.exporter.collect()
        assert said == [(503, None)]
        assert _said(routes, "/readyz")[0] == 200
    finally:
        made.close()


@pytest.mark.parametrize(
    ("proc", "reason"), [("nowhere", "proc_unreadable"), ("container", "not_host_pid_namespace")]
)
def test_why_processes_cannot_be_told_apart(tmp_path: Path, proc: str, reason: str) -> None:
    (tmp_path / "container" / "self").mkdir(parents=True)
    (tmp_path / "container" / "self" / "status").write_text("NSpid:\t1\n")
    settings = ExporterSettings(
        listen_host="127.0.0.1",
        kubernetes="off",
        kubelet_socket=tmp_path / "none.sock",
        processes=True,
        proc_root=tmp_path / proc,
    )
    made = module.assemble(settings, {"LD_LIBRARY_PATH": ""}, StateFile(None, ""), Now().clock())
    try:
        snapshot = made.exporter.collect()
    finally:
        made.close()
    assert [lack.reason for lack in snapshot.lacks if lack.part == "host_pids"] == [reason]
