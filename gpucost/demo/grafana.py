"""Grafana for ``gpucost demo --full``, where one is installed: gpucost's dashboards on the demo's Prometheus.

Everything it needs and keeps is in the demo's folder. It listens on loopback, anybody there may look, nobody
may change anything, and it reports to nobody.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpucost.demo.stack import SCRAPE_S, ChildProgram
from gpucost.domain.errors import ErrorRemark, InputError

NAMES = ("grafana", "grafana-server")
"""The program of today, whose first argument is ``server``, and the one before it."""
SOURCE = "gpucost-demo"
FIRST_BOARD = "gpucost-fleet.json"
_BOARDS = "dashboards"
_HOMES = (Path("/usr/share/grafana"), Path("/usr/local/share/grafana"))


@dataclass(frozen=True, slots=True)
class GrafanaProgram:
    """An installed Grafana: its ``name`` on PATH, and the folder of its own files, None where it knows."""

    name: str
    home: Path | None


def installed_grafana() -> GrafanaProgram | None:
    """The one on PATH. Its files are beside it (as in its archive), or where its packages put them."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            places = (Path(path).resolve().parents[1], *_HOMES)
            return GrafanaProgram(name, next((each for each in places if _is_home(each)), None))
    return None


def _is_home(folder: Path) -> bool:
    return (folder / "conf" / "defaults.ini").is_file()


def own_boards() -> Path:
    """The folder of gpucost's dashboards: beside this file where gpucost was installed, else in the checkout.
    Raises InputError where they are in neither place."""
    here = Path(__file__).parent
    places = (here / _BOARDS, here.parents[1] / _BOARDS / "generated")
    found = next((place for place in places if (place / FIRST_BOARD).is_file()), None)
    if found is None:
        raise InputError("dashboards", ErrorRemark("are not there"), f"a folder with {FIRST_BOARD}")
    return found


def grafana_program(program: GrafanaProgram, folder: Path, port: int, prometheus: str) -> ChildProgram:
    """Write its settings below ``folder``, and say how it is started. Its dashboards ask ``prometheus``."""
    home, host = folder / "grafana", f"127.0.0.1:{port}"
    provisioning = home / "provisioning"
    for part in (
        "datasources",
        "dashboards",
        "plugins",
        "alerting",
    ):  # it complains of those that are missing
        (provisioning / part).mkdir(parents=True, exist_ok=True)
    boards = own_boards()
    _write(provisioning / "datasources" / "gpucost.yaml", _source(prometheus))
    _write(provisioning / "dashboards" / "gpucost.yaml", _provider(boards))
    settings = home / "grafana.ini"
    settings.touch(0o600)
    settings.write_text(_settings(home, port, boards / FIRST_BOARD), encoding="utf-8")
    arguments = ["server"] if program.name == NAMES[0] else []
    arguments += [] if program.home is None else ["--homepath", str(program.home)]
    arguments += ["--config", str(settings)]
    return ChildProgram(program.name, arguments, f"http://{host}/api/health", folder / "grafana.log")


def _source(prometheus: str) -> dict[str, object]:
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": SOURCE, "uid": SOURCE, "type": "prometheus", "access": "proxy", "url": prometheus,
                "isDefault": True, "editable": False, "jsonData": {"timeInterval": f"{SCRAPE_S}s"},
            }
        ],
    }  # fmt: skip


def _provider(boards: Path) -> dict[str, object]:
    options = {"path": str(boards)}
    provider = {"name": "gpucost", "folder": "gpucost", "type": "file", "allowUiUpdates": False}
    return {"apiVersion": 1, "providers": [{**provider, "options": options}]}


def _settings(home: Path, port: int, first: Path) -> str:
    """Who looks is a viewer without a name; the administrator's password is nobody's."""
    sections: dict[str, dict[str, object]] = {
        "paths": {
            "data": home / "data", "logs": home / "logs", "plugins": home / "plugins",
            "provisioning": home / "provisioning",
        },
        "server": {"protocol": "http", "http_addr": "127.0.0.1", "http_port": port},
        "security": {"admin_password": secrets.token_urlsafe(24), "secret_key": secrets.token_urlsafe(24)},
        "auth": {"disable_login_form": "true"},
        "auth.anonymous": {"enabled": "true", "org_role": "Viewer"},
        "users": {"allow_sign_up": "false"},
        "analytics": {
            "reporting_enabled": "false", "check_for_updates": "false", "check_for_plugin_updates": "false",
            "feedback_links_enabled": "false",
        },
        "news": {"news_feed_enabled": "false"},
        "plugins": {"preinstall_disabled": "true", "public_key_retrieval_disabled": "true"},
        "dashboards": {"default_home_dashboard_path": first},
        "log": {"mode": "console", "level": "warn"},
    }  # fmt: skip
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _write(file: Path, document: dict[str, object]) -> None:
    """JSON is YAML too."""
    file.write_text(json.dumps(document, indent=2), encoding="utf-8")
