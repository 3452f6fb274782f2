"""Grafana's part of the full demo: the files it is given and its command line.

Debian has no Grafana, so none runs here: a program that answers as one does stands in its place on PATH.
"""

from __future__ import annotations

import configparser
import json
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from gpucost.demo.grafana import (
    FIRST_BOARD,
    NAMES,
    GrafanaProgram,
    grafana_program,
    installed_grafana,
    own_boards,
)
from gpucost.demo.stack import running
from tests.support.ports import free_port

PROMETHEUS = "http://127.0.0.1:9999"
STAND_IN = """#!{python}
import configparser, http.server, sys
settings = configparser.ConfigParser(interpolation=None)
settings.read(sys.argv[sys.argv.index("--config") + 1])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv[1:]).encode())
server = settings["server"]
http.server.HTTPServer((server["http_addr"], int(server["http_port"])), Answer).serve_forever()
"""


def installed(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As the archive of a Grafana: bin/NAME, and its conf."""
    program = folder / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    (folder / "conf").mkdir()
    (folder / "conf" / "defaults.ini").touch()
    monkeypatch.setenv("PATH", str(program.parent))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_an_installed_one_is_started_with_the_files_of_the_demo(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = installed(tmp_path / "grafana-13", name, monkeypatch)
    found = installed_grafana()
    assert found == GrafanaProgram(name, home)
    port, demo = free_port(), tmp_path / "demo"
    program = grafana_program(found, demo, port, PROMETHEUS)
    with running(program):
        said = urllib.request.urlopen(program.ready).read().decode()
    first = ["server"] if name == "grafana" else []
    wanted = [*first, "--homepath", str(home), "--config", str(demo / "grafana" / "grafana.ini")]
    assert said.split() == wanted


def test_where_there_is_none_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed_grafana() is None


def test_its_settings_keep_it_in_the_folder_on_loopback_and_read_only(tmp_path: Path) -> None:
    grafana_program(GrafanaProgram("grafana", None), tmp_path, 3000, PROMETHEUS)
    file = tmp_path / "grafana" / "grafana.ini"
    assert file.stat().st_mode & 0o077 == 0
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(file)
    assert (settings["server"]["http_addr"], settings["server"]["http_port"]) == ("127.0.0.1", "3000")
    assert all(Path(each).is_relative_to(tmp_path) for each in settings["paths"].values())
    assert dict(settings["auth.anonymous"]) == {"enabled": "true", "org_role": "Viewer"}
    assert settings["security"]["admin_password"] not in ("", "admin")
    assert settings["analytics"]["reporting_enabled"] == "false"
    assert Path(settings["dashboards"]["default_home_dashboard_path"]) == own_boards() / FIRST_BOARD


def test_what_it_is_provisioned_with_is_the_prometheus_and_the_six_boards(tmp_path: Path) -> None:
    grafana_program(GrafanaProgram("grafana", None), tmp_path, 3000, PROMETHEUS)
    provisioning = tmp_path / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "gpucost.yaml").read_text("utf-8"))[
        "datasources"
    ]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", PROMETHEUS, True)
    assert source["jsonData"]["timeInterval"] == "5s"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "gpucost.yaml").read_text("utf-8"))[
        "providers"
    ]
    boards = sorted(Path(provider["options"]["path"]).glob("*.json"))
    assert len(boards) == 6
    for board in boards:
        variables = json.loads(board.read_text("utf-8"))["templating"]["list"]
        assert [each["query"] for each in variables if each["type"] == "datasource"] == [source["type"]]
