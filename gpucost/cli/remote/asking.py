"""What the command line asks the API, as the same reports that it makes of a ledger itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from gpucost.cli.remote.client import JSON, Client
from gpucost.cli.remote.target import Target
from gpucost.domain.errors import SourceUnreachable
from gpucost.reports.allocations import Allocations
from gpucost.reports.findings import FindingReport, FindingRow, FindingsReport
from gpucost.reports.job import JobReport
from gpucost.reports.model import MonthReport
from gpucost.reports.reading import NotAReport, read_document, read_part
from gpucost.reports.waste import WasteReport
from gpucost.service.rendering import Format
from gpucost.service.reporting import Answer, LedgerStand

R = TypeVar("R")
Params = Mapping[str, str | None]

_TYPES = {Format.CSV: "text/csv", Format.PARQUET: "application/vnd.apache.parquet", Format.HTML: "text/html"}
_TYPES[Format.JSON] = JSON
_A_KEY = re.compile(r"gpc_[a-z0-9-]+_[A-Za-z0-9_-]+")
_MOST_PAGES, _MOST_TRIES = 10_000, 20


@dataclass(frozen=True, slots=True)
class Me:
    """Who the server says that one is. None: all teams, or none; all clusters."""

    id: str
    role: str
    teams: tuple[str, ...] | None
    clusters: tuple[str, ...] | None
    method: str


@dataclass(frozen=True, slots=True)
class ToldKey:
    """A key as the server tells it."""

    id: str
    role: str
    teams: tuple[str, ...] | None
    clusters: tuple[str, ...] | None
    state: str
    expires: str | None
    last_used: str | None
    created_by: str


class Remote:
    """The API of one server. Errors of the server are those of the command line: InputError with the field of
    the API, LedgerConflict, LedgerUnavailable, SourceError."""

    def __init__(self, target: Target) -> None:
        self.url = target.url
        self._client = Client(target)

    def me(self) -> Me:
        return self._read(read_part, Me, self._client.json("/v1/me"))

    def month_file(self, month: str, format_: Format, **params: str | None) -> str | bytes:
        """The report of a month as the server renders it."""
        wanted = _given({**params, "format": str(format_)})
        content = self._client.file(f"/v1/reports/{_part(month)}", wanted, _TYPES[format_])
        return content if format_ is Format.PARQUET else self._text(content)

    def month(self, month: str, **params: str | None) -> MonthReport:
        found = self._client.json(f"/v1/reports/{_part(month)}", _given(params))
        return self._read(read_document, MonthReport, found)

    def allocations(self, **params: str | None) -> Answer[Allocations]:
        """All pages as one. A ledger that was written to meanwhile is asked again from the start."""
        for _ in range(_MOST_TRIES):
            pages = list(self._pages(_given(params)))
            reports = [self._read(read_document, Allocations, page) for page in pages]
            stands = [self._stand(page) for page in pages]
            if len({stand.digest for stand in stands}) == 1:
                names = reports[0].group_by
                rows = tuple(
                    # A document sorts names; in a table they stand as they were asked for.
                    replace(row, group={name: row.group[name] for name in names})
                    for report in reports
                    for row in report.rows
                )
                return Answer(replace(reports[0], rows=rows), stands[0])
        raise SourceUnreachable(
            f"{self.url}: its ledger changed while its pages were read, {_MOST_TRIES} times; ask for less"
        )

    def job(self, uid: str, **params: str | None) -> Answer[JobReport]:
        return self._answer(JobReport, f"/v1/jobs/{_part(uid)}", params)

    def waste(self, **params: str | None) -> Answer[WasteReport]:
        return self._answer(WasteReport, "/v1/waste", params)

    def findings(self, **params: str | None) -> FindingsReport:
        """All pages as one, without what was withheld."""
        rows: list[FindingRow] = []
        after, first = None, None
        for _ in range(_MOST_PAGES):
            found = self._client.json("/v1/findings", _given({**params, "limit": "1000", "after": after}))
            page = self._read(read_document, FindingsReport, found)
            first, after = first or page, page.next
            rows += page.findings
            if after is None:
                return replace(first, findings=tuple(rows), next=None, withheld=None, withheld_count=None)
        raise self._strange(f"more than {_MOST_PAGES:,} pages")

    def finding(self, finding_id: int) -> FindingReport:
        return self._read(read_document, FindingReport, self._client.json(f"/v1/findings/{finding_id}"))

    def change_finding(self, finding_id: int, change: str, body: Mapping[str, str]) -> FindingReport:
        """``acknowledge``, ``mute`` or ``unmute``; the finding as it is then."""
        found = self._client.json(f"/v1/findings/{finding_id}/{change}", body=dict(body))
        return self._read(read_document, FindingReport, found)

    def add_key(self, body: Mapping[str, Any]) -> str:
        """The new key, which is told once."""
        found = self._client.json("/v1/keys", body=dict(body))
        key = self._read(read_part, _NewKey, found).key
        if not _A_KEY.fullmatch(key):  # it goes to a terminal as it is
            raise self._strange("no key where one should be")
        return key

    def api_keys(self) -> tuple[ToldKey, ...]:
        return self._read(read_part, _KeyList, self._client.json("/v1/keys")).keys

    def revoke_key(self, key_id: str, reason: str) -> tuple[str, ...]:
        """The valid keys that this one made, as far as one keeps them."""
        found = self._client.json(f"/v1/keys/{_part(key_id)}/revoke", body={"reason": reason})
        return self._read(read_part, _RevokedKey, found).made

    def _pages(self, params: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        page, pages = 0, 1
        while page < pages:
            page += 1
            found = self._client.json("/v1/allocations", {**params, "page": str(page)})
            pages = found.get("pages", 1) if isinstance(found, Mapping) else 1
            if type(pages) is not int or pages > _MOST_PAGES:
                raise self._strange(f"a number of pages that is none, or more than {_MOST_PAGES:,}")
            yield found

    def _answer(self, kind: type[R], path: str, params: Params) -> Answer[R]:
        found = self._client.json(path, _given(params))
        return Answer(self._read(read_document, kind, found), self._stand(found))

    def _stand(self, found: Mapping[str, Any]) -> LedgerStand:
        return self._read(read_part, LedgerStand, found.get("ledger"))

    def _read(self, read: Callable[[type[R], object], R], kind: type[R], found: object) -> R:
        try:
            return read(kind, found)
        except NotAReport as error:
            raise SourceUnreachable(
                f"{self.url} answers what this gpucost does not understand ({error}): is it another version?"
            ) from None

    def _strange(self, what: str) -> SourceUnreachable:
        return SourceUnreachable(f"{self.url} answers with {what}: it is not gpucost, or is broken")

    def _text(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise SourceUnreachable(f"{self.url} answers text that is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class _NewKey:
    key: str


@dataclass(frozen=True, slots=True)
class _RevokedKey:
    made: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _KeyList:
    keys: tuple[ToldKey, ...]


def words(values: Sequence[str] | None) -> str | None:
    """Several values of one parameter; None for none."""
    return ",".join(values) if values else None


def _given(params: Params) -> dict[str, str]:
    return {name: value for name, value in params.items() if value is not None}


def _part(text: str) -> str:
    """A value as one part of a path: ``.`` and ``..`` would lead elsewhere."""
    return quote(text, safe="").replace(".", "%2E") if text.strip(".") == "" else quote(text, safe="")
