"""All faces of a demo: what its commands and its API say, each asked once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from typer.testing import CliRunner

from gpucost.api.app import create_app
from gpucost.attribution.teams import TeamRules
from gpucost.cli.application import app
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from gpucost.service.wiring.demo_month import DEMO_MONTH
from tests.cli import known_amounts as known
from tests.cli.named_amounts import Names, Page, amounts_at, printed_of, text_tables, without_tables
from tests.cli.told_amounts import MONTH, TO_DO, WEEK, Rule, flat, told_of

_MONTH, _WEEK = str(DEMO_MONTH), "2026-W43"
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "report json": ("report", _MONTH, "-f", "json"),
    "report csv": ("report", _MONTH, "-f", "csv"),
    "findings": ("findings",),
    "findings json": ("findings", "-f", "json"),
    "findings csv": ("findings", "-f", "csv"),
    "waste": ("waste", _MONTH),
    "waste csv": ("waste", _MONTH, "-f", "csv"),
    "waste of the week json": ("waste", "2026-10-19T00:00:00Z/2026-10-26T00:00:00Z", "-f", "json"),
    # The last day is provisional: /metrics count what is final.
    "waste that is final json": ("waste", "2026-10-01T00:00:00Z/2026-10-31T00:00:00Z", "-f", "json"),
    "digest": ("digest", _WEEK),
    "digest html": ("digest", _WEEK, "-f", "html"),
    "digest json": ("digest", _WEEK, "-f", "json"),
}


@dataclass(frozen=True)
class Faces:
    """What each face of a demo says, by its name; ``known`` has the amounts of those that programs read."""

    texts: Mapping[str, str]
    known: Names
    words: tuple[str, ...]
    """What findings say of themselves, in sentences of their own: the same text on every page."""

    @classmethod
    def of(cls, folder: Path, told: Mapping[str, str]) -> Faces:
        """``told`` has the page of the month as the demo printed it, and what commands are known to say."""
        texts = {**told, "report html": (folder / "report.html").read_text(encoding="utf-8")}
        for face, words in _COMMANDS.items():
            if face not in told:
                texts[face] = _told_by(folder, *words)
        texts["/metrics"] = _metrics(folder)
        read = {face: json.loads(text) for face, text in texts.items() if face.endswith(" json")}
        names = Names()
        names.know("report json", known.report_json(read["report json"], "month"))
        names.know("findings json", known.findings_json(read["findings json"]))
        names.know("digest json", known.digest_json(read["digest json"], "week"))
        names.know("waste json", known.waste_json(read["waste of the week json"], "week"))
        names.know("waste json", known.waste_json(read["waste that is final json"], "final"))
        names.know("report csv", known.report_csv(texts["report csv"], "month"))
        names.know("waste csv", known.waste_csv(texts["waste csv"], "month"))
        names.know("findings csv", known.findings_csv(texts["findings csv"]))
        names.know("/metrics", known.metrics_of(texts["/metrics"], "month", "final"))
        rows = read["report json"]["waste"]["to_do"], read["digest json"]["actions"]
        told = _words(read["findings json"]["findings"], *rows)
        return cls(texts, names, tuple(sorted(told, key=len, reverse=True)))

    def shown(self, changed: Mapping[str, str] | None = None) -> Names:
        """Every amount of the pages for people, beside what is known; ``changed`` are other texts."""
        names = Names(self.known.exact)
        for face, text in (changed or self.texts).items():
            match face:
                case "report" | "waste":
                    self._text(names, face, text)
                case "report html":
                    self._page(names, face, text)
                case "digest":
                    self._week(names, face, text)
                case "digest html":
                    self._week(names, face, "\n".join(Page(text).everything))
                case "findings":
                    _findings(names, face, text)
        return names

    def _text(self, names: Names, face: str, text: str) -> None:
        names.show(face, printed_of(text_tables(text), "month"))
        self._sentences(names, face, without_tables(text), (*MONTH, *TO_DO), "month")

    def _page(self, names: Names, face: str, text: str) -> None:
        page = Page(text)
        names.show(face, printed_of(page.tables, "month"))
        for title in page.titles:
            printed, left = told_of(title, MONTH, "month")
            names.show(face, printed)
            assert not amounts_at(left), f"{face}: nobody walks {left}"
        self._sentences(names, face, " ".join(page.words), (*MONTH, *TO_DO), "month")

    def _week(self, names: Names, face: str, text: str) -> None:
        lines = text.splitlines()
        for line in (line for line in lines if "█" in line):
            printed, left = told_of(line, WEEK, "week")
            names.show(face, printed)
            assert not amounts_at(left), f"{face}: nobody walks {left}"
        self._sentences(names, face, "\n".join(line for line in lines if "█" not in line), WEEK, "week")

    def _sentences(self, names: Names, face: str, text: str, rules: Sequence[Rule], scope: str) -> None:
        """No amount may be left that no rule has a name for."""
        text = flat(text.replace(" * ", " "))
        for each in self.words:
            text = text.replace(each, " ")
        printed, left = told_of(flat(text), rules, scope)
        names.show(face, printed)
        around = [left[max(0, at - 60) : at + 60] for at in amounts_at(left)]
        assert not around, f"{face}: nobody walks {around}"


def _told_by(folder: Path, *words: str) -> str:
    command = ["--config", str(folder / "config.yaml"), *words]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def _metrics(folder: Path) -> str:
    """/metrics at the last instant of the month."""
    teams = TeamRules.parse((folder / "teams.yaml").read_text(encoding="utf-8"), "teams.yaml")
    now = DEMO_MONTH.window.end_ms - 1
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=lambda: now) as ledger:
        api = create_app(
            ledger, ApiSettings(auth="off"), now=lambda: now, budgets=teams.budgets, plans=teams.budget_plans
        )
        with TestClient(api, base_url="http://localhost") as client:
            # A scrape adds up what it may take time for: the rest is the next one's.
            pages = (client.get("/metrics").text for _ in range(100))
            return next(page for page in pages if "\ngpucost_waste_gpu_seconds_total{" in page)


def _words(*lists: Sequence[Mapping[str, Any]]) -> set[str]:
    found: set[str] = set()
    for row in (row for rows in lists for row in rows):
        action = row["action"]
        texts = (action["text"], action["patch"]) if isinstance(action, dict) else (action, row["patch"])
        found |= {flat(text).rstrip(".") for text in (row["summary"], *texts) if text}
    return found


def _findings(names: Names, face: str, text: str) -> None:
    (table,) = text_tables(text)
    for row in table.rows:
        for head, of in _OF_FINDINGS.items():
            if row.get(head, "–") != "–":
                names.show(face, [(("finding", row["id"], of), row[head].rstrip("°"))])


_OF_FINDINGS: Mapping[str, str] = {
    "gpu-h": "hours in its last day",
    "last day": "in its last day",
    "rate": "a day at its rate of now",
}
