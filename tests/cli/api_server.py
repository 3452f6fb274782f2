"""The API over a ledger, answering on a loopback port from a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.cli.terminal.context import now_ms
from gpucost.ledger.ledger import Ledger
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.service.settings.api import ApiSettings
from tests.kube.pki import Pki
from tests.support.app_server import answering
from tests.support.ports import free_port

SECRET = "s3cret-that-nobody-may-read"


@dataclass(frozen=True)
class Server:
    """``keys`` has a file with the key of each role."""

    url: str
    keys: Path
    ledger: Ledger

    def key(self, name: str) -> Path:
        return self.keys / name


@contextmanager
def served(
    ledger_url: str, folder: Path, pki: Pki | None = None, advising: AdvisorService | None = None
) -> Iterator[Server]:
    """The ledger with the keys ``root``, ``fin``, ``prom``, ``lead`` and ``vera`` (both of team vision)."""
    with Ledger.open(ledger_url, now=now_ms) as ledger:
        folder.mkdir(exist_ok=True)
        for name, role, teams in (
            ("root", AccessRole.ADMIN, frozenset[str]()),
            ("fin", AccessRole.FINANCE, frozenset[str]()),
            ("prom", AccessRole.METRICS, frozenset[str]()),
            ("lead", AccessRole.TEAM_ADMIN, frozenset({"vision"})),
            ("vera", AccessRole.VIEWER, frozenset({"vision"})),
        ):
            if ledger.key(name) is None:
                record = KeyRecord(
                    name, hash_secret(SECRET), role, teams, created_ms=now_ms(), created_by="test"
                )
                ledger.add_key(record)
            (folder / name).write_text(format_key(name, SECRET) + "\n", encoding="utf-8")
        app = create_app(ledger, ApiSettings(), now=now_ms, advising=advising)
        certificate = None if pki is None else (pki.server.with_suffix(".crt"), pki.server)
        with answering(app, free_port(), certificate) as url:
            yield Server(url, folder, ledger)
