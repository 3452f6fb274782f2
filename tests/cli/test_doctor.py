"""gpucost doctor on the command line: options, exit codes and errors. What it finds out, is tested in
tests/telemetry/doctor_setups."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner, Result

import gpucost.cli.commands.doctor
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import DAY_MS, Month

NOW = Month(2026, 11).window.start_ms + 3 * DAY_MS


class Server(BaseHTTPRequestHandler):
    """Knows nothing, answers questions of ``refused`` with 422, and remembers who asked."""

    refused = ""
    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        text = form.get("query", form.get("match[]", [""]))[0]
        self.asked.append((text, self.headers.get("Authorization", "")))
        if self.refused and self.refused in text:
            self._answer(422, {"status": "error", "error": "too many samples \x1b[2J"})
        elif self.path.endswith(("/series", "/labels")):
            self._answer(200, {"status": "success", "data": []})
        else:
            kind = "matrix" if self.path.endswith("query_range") else "vector"
            self._answer(200, {"status": "success", "data": {"resultType": kind, "result": []}})

    def do_GET(self) -> None:
        self._answer(404, {"status": "error", "error": "not found"})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Server,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucost.cli.commands.doctor, "now_ms", lambda: NOW)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_nothing_there_ends_with_three_and_says_what_to_scrape(server: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    result = run("doctor", "--prometheus", url)
    assert (result.exit_code, result.stderr) == (ExitCode.SOURCE, "")
    first = result.stdout.splitlines()[0]
    assert first.startswith("The cost of October 2026 cannot be told: ")  # the last whole month
    assert first.endswith(" Turn on first: Let Prometheus scrape kube-state-metrics (step 1 below)")


def test_the_settings_prometheus_is_asked_with_its_token(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    file = tmp_path / "gpucost.yaml"
    file.write_text(
        f"prometheus:\n  url: http://127.0.0.1:{server.server_port}\n  bearer_token: s3cret\n"
        "  matchers: {tenant: 'a\"b'}\n"
    )
    result = run("--config", str(file), "doctor", "--month", "2026-11", "--cluster", "prod", "-f", "json")
    assert (result.exit_code, json.loads(result.stdout)["month"]) == (ExitCode.SOURCE, "2026-11")
    asked = server.RequestHandlerClass.asked  # type: ignore[attr-defined]
    assert {token for _, token in asked} == {"Bearer s3cret"}
    assert all(r'tenant="a\"b"' in text for text, _ in asked)
    # Others are asked for only as long as nothing of this one is found, to name them.
    assert len([text for text, _ in asked if 'cluster="prod"' not in text]) == 2
    assert "s3cret" not in result.stdout


def test_what_is_refused_is_not_known(server: ThreadingHTTPServer) -> None:
    server.RequestHandlerClass.refused = "kube_node_status_allocatable{"  # type: ignore[attr-defined]
    result = run("doctor", "--prometheus", f"http://127.0.0.1:{server.server_port}")
    assert (result.exit_code, result.stderr) == (ExitCode.SOURCE, "")
    assert "GPUs of nodes" in result.stdout
    assert "answered 422" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_server_that_is_not_there_is_an_error_as_elsewhere() -> None:
    result = run("doctor", "--prometheus", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    assert "127.0.0.1:9 cannot be reached: connection refused; is prometheus.url right?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prometheus", "ftp://x"), "--prometheus: 'ftp://x'"),
        (("--month", "October"), "--month: 'October' is not allowed; allowed: YYYY-MM"),
        (("--month", "2027-01"), "--month: '2027-01' is not allowed; allowed: a month that has begun"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], message: str) -> None:
    result = run("doctor", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr
