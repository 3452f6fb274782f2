"""The API of a server as the same reports that the command line makes of a ledger itself.

Each request is made here, and its refusals become the errors that the command line knows.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2

from gpucost.cli.remote.server_target import ServerTarget
from gpucost.domain.errors import (
    ErrorRemark,
    GpuCostError,
    InputError,
    LedgerConflict,
    LedgerUnavailable,
    SourceTimeout,
    SourceUnreachable,
    shorten,
)
from gpucost.domain.time import Month
from gpucost.reports.base.document import (
    NotAReport,
    parse_json,
    read_document,
    read_part,
)
from gpucost.reports.charges.charge_previews import ChargebackPreview
from gpucost.reports.charges.charge_statements import TeamStatement
from gpucost.reports.digest.week_model import WeekDigest
from gpucost.reports.focus.invoice_reconciliation import LedgerNodes, NodeDifference
from gpucost.reports.job.job_receipt import JobReceipt
from gpucost.reports.job.job_report import JobMatches, JobReport
from gpucost.reports.live.state_facts import StateFacts
from gpucost.reports.month.allocations import Allocations
from gpucost.reports.month.budget_status import BudgetReport
from gpucost.reports.month.cost_incidents import IncidentReport
from gpucost.reports.month.model import (
    ClosePreview,
    MonthReport,
    MonthStatus,
    MonthStatuses,
    StatementSummary,
)
from gpucost.reports.month.month_end import ForecastScore, MonthForecast
from gpucost.reports.month.reference_lists import MonthBudgets, PriceList, TeamDirectory
from gpucost.reports.month.savings_report import SavingsReport
from gpucost.reports.month.span_change import SpanChange
from gpucost.reports.waste.findings import FindingEntry, FindingReport, FindingsReport
from gpucost.reports.waste.waste_report import WasteReport
from gpucost.service.reporting.rendering import ReportFormat
from gpucost.service.reporting.report_service import LedgerStand, ReportAnswer

if TYPE_CHECKING:
    from gpucost.advisor.model.answers import Advice, Explanation

A = TypeVar("A", "Advice", "Explanation")

JSON = "application/json"
LEDGER_HEADER = "Gpucost-Ledger"
MOST_BYTES = 512 * 1024 * 1024
_MOST_FILE_BYTES = 64 * 1024**3
_CONNECT_S, _READ_S, _FILE_S = 10.0, 120.0, 3_600.0


class ApiClient:
    """Asks one server. The credential is read for each request, and sent to that server only: redirects are
    not followed, and plain HTTP goes through no proxy."""

    def __init__(self, target: ServerTarget) -> None:
        self._target = target

    def json(self, path: str, params: Mapping[str, str] | None = None, body: object = None) -> Any:
        """The answer of a GET, or with a ``body`` of a POST, as ``parse_json`` reads it."""
        try:
            return parse_json(self.content(path, params or {}, body))
        except NotAReport:
            raise self._strange("an answer that is not JSON") from None

    def content(self, path: str, params: Mapping[str, str], body: object = None) -> bytes:
        """The same as it came: JSON, unread."""
        return self._ask(path, params, body, JSON)

    def file(self, path: str, params: Mapping[str, str], media_type: str) -> bytes:
        """The answer of a GET as the content of a file."""
        return self._ask(path, params, None, media_type)

    def download(self, path: str, params: Mapping[str, str], media_type: str, sink: IO[bytes]) -> None:
        """The answer of a GET into ``sink``, which is worth nothing where this raises. The server may take
        long before it begins to answer."""
        self._ask(path, params, None, media_type, sink)

    def _ask(
        self,
        path: str,
        params: Mapping[str, str],
        body: object,
        media_type: str,
        sink: IO[bytes] | None = None,
    ) -> bytes:
        """The content; nothing where it went into ``sink``."""
        target = self._target
        # A response that is compressed could hold more than fits here.
        headers = {"Accept": media_type, "Accept-Encoding": "identity"}
        if target.credential is not None:
            headers["Authorization"] = f"Bearer {target.credential.read()}"
        client = httpx2.Client(
            verify=self._tls(),
            timeout=httpx2.Timeout(_READ_S if sink is None else _FILE_S, connect=_CONNECT_S),
            follow_redirects=False,
            trust_env=target.url.startswith("https:"),
        )
        method, url = "GET" if body is None else "POST", target.url + path
        try:
            with (
                client,
                client.stream(method, url, params=dict(params), headers=headers, json=body) as response,
            ):
                content = self._content(response, sink if response.is_success else None)
        except httpx2.TimeoutException:
            raise SourceTimeout(f"{target.url} does not answer in time; trying again is safe") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._unreachable(error) from None
        self._check(response, content, media_type)
        return content

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._target.url.startswith("https:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used; the usual one takes time to make
        if self._target.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self._target.ca_file))
        except OSError:
            found = str(self._target.ca_file)
            raise InputError("--ca-file", found, "a PEM file of certificate authorities") from None

    def _content(self, response: httpx2.Response, sink: IO[bytes] | None) -> bytes:
        parts, size = [], 0
        most = MOST_BYTES if sink is None else _MOST_FILE_BYTES
        for part in response.iter_raw():
            size += len(part)
            if size > most:
                raise self._strange(f"more than {most} bytes")
            if sink is None:
                parts.append(part)
            else:
                sink.write(part)
        return b"".join(parts)

    def _check(self, response: httpx2.Response, content: bytes, media_type: str) -> None:
        """Raises for anything but the expected response of gpucost."""
        given = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_redirect:
            where = urlsplit(response.headers.get("location", "")).netloc.rpartition("@")[2]
            raise self._strange(f"a redirect to {shorten(where)}, which is not followed")
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise self._refusal(response.status_code, given, content)
        if given != media_type:
            raise self._strange(f"{shorten(given)} instead of {media_type}")
        # Pages of other servers are HTML as well.
        if media_type == "text/html" and LEDGER_HEADER not in response.headers:
            raise self._strange("an HTML page that is not gpucost's")

    def _refusal(self, status: int, media_type: str, content: bytes) -> GpuCostError:
        error: Mapping[str, Any] = {}
        if media_type == JSON:
            try:
                found = parse_json(content)["error"]
                error = {name: None if found[name] is None else str(found[name]) for name in _PARTS}
            except (NotAReport, KeyError, TypeError):
                error = {}
        if not error:
            return self._strange(f"HTTP {status} without an error of gpucost's")
        url, message = self._target.url, error["message"]
        if status == HTTPStatus.UNAUTHORIZED:
            if self._target.credential is None:
                found, do = "missing", f"a login (gpucost login {url}), or GPUCOST_TOKEN_FILE"
            else:
                found = f"{url} does not accept it: it is wrong, has expired or was revoked"
                do = f"another one: gpucost login {url}"
            return InputError("key or token", ErrorRemark(found), do)
        if status == HTTPStatus.FORBIDDEN:
            return InputError("key or token", ErrorRemark(message), "one with another role; gpucost whoami")
        if status == HTTPStatus.CONFLICT:
            return LedgerConflict(message)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = LedgerUnavailable if error["code"] == "ledger_unavailable" else SourceUnreachable
            return kind(f"{url}: {message}")
        value = ErrorRemark(message) if error["value"] is None else error["value"]
        return InputError(error["field"] or "request", value, error["allowed"] or message)

    def _unreachable(self, error: Exception) -> GpuCostError:
        text, url = str(error), self._target.url
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return SourceUnreachable(
                f"{url}: its certificate is not trusted here ({shorten(text, 200)}); "
                "gpucost login --ca-file, or GPUCOST_CA_FILE, names the authority that signed it"
            )
        if "SSL" in text or isinstance(error, ssl.SSLError):
            return SourceUnreachable(f"{url}: no TLS with it ({shorten(text, 200)})")
        return SourceUnreachable(f"{url} cannot be reached: {shorten(text or type(error).__name__, 200)}")

    def _strange(self, what: str) -> GpuCostError:
        return SourceUnreachable(
            f"{self._target.url} answers with {what}: it is not gpucost, or something stands before it"
        )


_PARTS = ("code", "message", "field", "value", "allowed")


R = TypeVar("R")
Params = Mapping[str, str | None]

_TYPES = {
    ReportFormat.CSV: "text/csv",
    ReportFormat.PARQUET: "application/vnd.apache.parquet",
    ReportFormat.HTML: "text/html",
}
_TYPES[ReportFormat.JSON] = JSON
_A_KEY = re.compile(r"gpc_[a-z0-9-]+_[A-Za-z0-9_-]+")
_MOST_PAGES, _MOST_TRIES = 10_000, 20
# A body has at most 64 KiB where the settings do not say otherwise.
_NODES_AT_ONCE, _LONGEST_FILE = 25, 200


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """The caller's identity according to the server. None: all teams, or none; all clusters."""

    id: str
    role: str
    teams: tuple[str, ...] | None
    clusters: tuple[str, ...] | None
    method: str


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key as the server returns it."""

    id: str
    role: str
    teams: tuple[str, ...] | None
    clusters: tuple[str, ...] | None
    state: str
    expires: str | None
    last_used: str | None
    created_by: str


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A login session as the server returns it; ``ended_by`` None is one that is open."""

    id: str
    owner: str
    method: str
    created_at: str
    expires: str
    ended_by: str | None


class RemoteApi:
    """The API of one server. Errors of the server are those of the command line: InputError with the field of
    the API, LedgerConflict, LedgerUnavailable, SourceError."""

    def __init__(self, target: ServerTarget) -> None:
        self.url = target.url
        self._client = ApiClient(target)

    def content(self, path: str, params: Mapping[str, str], body: object = None) -> bytes:
        """The JSON of any route, as it came; of a POST where there is a ``body``."""
        return self._client.content(path, params, body)

    def me(self) -> CallerIdentity:
        return self._read(read_part, CallerIdentity, self._client.json("/v1/me"))

    def month_file(self, month: str, format_: ReportFormat, **params: str | None) -> str | bytes:
        """The report of a month as the server renders it."""
        wanted = _given({**params, "format": str(format_)})
        content = self._client.file(f"/v1/reports/{_part(month)}", wanted, _TYPES[format_])
        return content if format_ is ReportFormat.PARQUET else self._text(content)

    def focus_file(self, month: Month, format_: ReportFormat, sink: IO[bytes], **params: str | None) -> None:
        """A dataset of a month as FOCUS, which may be larger than memory."""
        wanted = _given({**params, "format": str(format_)})
        self._client.download(f"/v1/focus/{month}", wanted, _TYPES[format_], sink)

    def focus_metadata(self, month: Month, **params: str | None) -> Mapping[str, object]:
        found = self._client.json(f"/v1/focus/{month}/metadata", _given(params))
        if not isinstance(found, dict):
            raise self._strange("no metadata")
        return found

    def ledger_nodes(self, month: Month) -> LedgerNodes:
        """What the server's ledger has of each node, for an invoice to be put beside."""
        found = self._client.json(f"/v1/focus/{month}/nodes")
        return self._read(read_document, LedgerNodes, found)

    def book_differences(
        self, found: Mapping[Month, Sequence[NodeDifference]], file: str, digest: str
    ) -> int:
        """How many adjustments were booked. Raises LedgerConflict before anything is booked where a month is
        open."""
        for month in sorted(found):
            for each in self.months(month).months:
                if not each.is_closed:
                    raise LedgerConflict(f"{month} is open: an adjustment corrects a closed month")
        booked = 0
        for month, nodes in sorted(found.items()):
            for at in range(0, len(nodes), _NODES_AT_ONCE):
                some = [asdict(each) for each in nodes[at : at + _NODES_AT_ONCE]]
                body = {"file": file[:_LONGEST_FILE], "digest": digest, "nodes": some}
                answer = self._client.json(f"/v1/focus/{month}/differences", body=body)
                booked += self._read(read_part, _BookedDifferences, answer).booked
        return booked

    def month(self, month: str, **params: str | None) -> MonthReport:
        found = self._client.json(f"/v1/reports/{_part(month)}", _given(params))
        return self._read(read_document, MonthReport, found)

    def allocations(self, **params: str | None) -> ReportAnswer[Allocations]:
        """All pages as one. When the ledger was written to meanwhile, it starts again from the first page."""
        for _ in range(_MOST_TRIES):
            pages = list(self._pages(_given(params)))
            reports = [self._read(read_document, Allocations, page) for page in pages]
            stands = [self._stand(page) for page in pages]
            if len({stand.digest for stand in stands}) == 1:
                names = reports[0].group_by
                rows = tuple(
                    # A document sorts names; a table keeps the order of the request.
                    replace(row, group={name: row.group[name] for name in names})
                    for report in reports
                    for row in report.rows
                )
                return ReportAnswer(replace(reports[0], rows=rows), stands[0])
        raise SourceUnreachable(
            f"{self.url}: its ledger changed while its pages were read, {_MOST_TRIES} times; ask for less"
        )

    def jobs_named(self, name: str, **params: str | None) -> JobMatches:
        found = self._client.json("/v1/jobs", {"job": name, **_given(params)})
        return self._read(read_document, JobMatches, found)

    def jobs(self, **params: str | None) -> JobMatches:
        """A page of jobs, and those that wait now."""
        return self._read(read_document, JobMatches, self._client.json("/v1/jobs", _given(params)))

    def teams(self, **params: str | None) -> TeamDirectory:
        return self._read(read_document, TeamDirectory, self._client.json("/v1/teams", _given(params)))

    def budgets(self, **params: str | None) -> MonthBudgets:
        return self._read(read_document, MonthBudgets, self._client.json("/v1/budgets", _given(params)))

    def forecast(self, month: Month) -> MonthForecast:
        return self._read(read_document, MonthForecast, self._client.json(f"/v1/months/{month}/forecast"))

    def forecast_score(self) -> ForecastScore:
        return self._read(read_document, ForecastScore, self._client.json("/v1/forecasts/score"))

    def budget_status(self, **params: str | None) -> BudgetReport:
        return self._read(
            read_document, BudgetReport, self._client.json("/v1/budgets/status", _given(params))
        )

    def incidents(self, **params: str | None) -> IncidentReport:
        return self._read(read_document, IncidentReport, self._client.json("/v1/incidents", _given(params)))

    def prices(self) -> PriceList:
        return self._read(read_document, PriceList, self._client.json("/v1/prices"))

    def job(self, uid: str, **params: str | None) -> ReportAnswer[JobReport]:
        return self._answer(JobReport, f"/v1/jobs/{_part(uid)}", params)

    def receipt(self, uid: str, **params: str | None) -> ReportAnswer[JobReceipt]:
        return self._answer(JobReceipt, f"/v1/jobs/{_part(uid)}/receipt", params)

    def months(self, month: Month | None) -> MonthStatuses:
        """How one month stands, or every one that the server's ledger has."""
        path = "/v1/months" if month is None else f"/v1/months/{month}"
        found = self._read(read_document, MonthStatuses, self._client.json(path))
        if month is not None and [each.month for each in found.months] != [month]:
            raise self._strange("other months than were asked for")
        return found

    def close_preview(self, month: Month) -> ClosePreview:
        return self._read(read_document, ClosePreview, self._client.json(f"/v1/months/{month}/close"))

    def close_month(self, month: Month, *, reason: str, yes: bool) -> MonthStatus:
        """The month as it is then."""
        body = {"reason": reason, "yes": yes}
        return self._read(
            read_document, MonthStatus, self._client.json(f"/v1/months/{month}/close", body=body)
        )

    def charges(self, month: Month) -> StatementSummary:
        """What every team pays, of those that the caller may see."""
        found = self._client.json(f"/v1/months/{month}/charges")
        return self._read(read_document, StatementSummary, found)

    def statements(self, month: Month, teams: Sequence[str]) -> tuple[TeamStatement, ...]:
        """Of ``teams``, in their order; without any, of every team that the caller may see."""
        if teams:
            path = f"/v1/months/{month}/statement"
            rows = [self._client.json(path, {"team": team}) for team in teams]
        else:
            rows = self._client.json(f"/v1/months/{month}/statements")
            if not isinstance(rows, list):
                raise self._strange("no list of statements")
        return tuple(self._read(read_document, TeamStatement, row) for row in rows)

    def preview(
        self, month: Month, policies: Sequence[tuple[str, str, Mapping[str, str]]], by: str
    ) -> ChargebackPreview:
        """The month under ``policies``: names of files, their text, and those of the files that they name."""
        texts = [{"name": name, "text": text, "files": dict(files)} for name, text, files in policies]
        body = {"policies": texts, "by": by}
        found = self._client.json(f"/v1/months/{month}/chargeback", body=body)
        return self._read(read_document, ChargebackPreview, found)

    def digest(self, **params: str | None) -> WeekDigest:
        return self._read(read_document, WeekDigest, self._client.json("/v1/digest", _given(params)))

    def advice(self, manifest: Mapping[str, Any], *, suggestions: bool) -> Advice:
        """What would become of a job if it were submitted now."""
        from gpucost.advisor.model.answers import Advice

        body = {"manifest": manifest, "suggestions": suggestions}
        return self._answered(Advice, self._client.json("/v1/advisor/advice", body=body))

    def explanation(self, kind: str, namespace: str, name: str) -> Explanation:
        """What holds a job that exists."""
        from gpucost.advisor.model.answers import Explanation

        path = "/".join(_part(each) for each in (kind, namespace, name))
        return self._answered(Explanation, self._client.json(f"/v1/explain/{path}"))

    def state(self) -> StateFacts:
        """The cluster that the server watches, as it is now."""
        from gpucost.reports.live.state_document import read_state

        return self._read(lambda _, found: read_state(found), StateFacts, self._client.json("/v1/state"))

    def _answered(self, kind: type[A], found: object) -> A:
        # Imported here: reports need nothing of the advisor.
        from gpucost.advisor.model.encoding import NotAnAnswer, read_answer

        try:
            return read_answer(kind, found)
        except NotAnAnswer as error:
            raise self._strange(str(error)) from None

    def changes(self, **params: str | None) -> SpanChange:
        return self._read(read_document, SpanChange, self._client.json("/v1/changes", _given(params)))

    def waste(self, **params: str | None) -> ReportAnswer[WasteReport]:
        return self._answer(WasteReport, "/v1/waste", params)

    def findings(self, **params: str | None) -> FindingsReport:
        """All pages as one, without what was withheld."""
        rows: list[FindingEntry] = []
        after, first = None, None
        for _ in range(_MOST_PAGES):
            found = self._client.json("/v1/findings", _given({**params, "limit": "1000", "after": after}))
            page = self._read(read_document, FindingsReport, found)
            first, after = first or page, page.next
            rows += page.findings
            if after is None:
                return replace(first, findings=tuple(rows), next=None, withheld=None, withheld_count=None)
        raise self._strange(f"more than {_MOST_PAGES:,} pages")

    def savings(self, **params: str | None) -> SavingsReport:
        return self._read(read_document, SavingsReport, self._client.json("/v1/savings", _given(params)))

    def finding(self, finding_id: int) -> FindingReport:
        return self._read(read_document, FindingReport, self._client.json(f"/v1/findings/{finding_id}"))

    def change_finding(self, finding_id: int, change: str, body: Mapping[str, str]) -> FindingReport:
        """``acknowledge``, ``mute`` or ``unmute``; the finding as it is then."""
        found = self._client.json(f"/v1/findings/{finding_id}/{change}", body=dict(body))
        return self._read(read_document, FindingReport, found)

    def add_key(self, body: Mapping[str, Any]) -> str:
        """The new key, which the server shows once."""
        found = self._client.json("/v1/keys", body=dict(body))
        key = self._read(read_part, _NewKey, found).key
        if not _A_KEY.fullmatch(key):  # it is written to a terminal as it is
            raise self._strange("no key where one should be")
        return key

    def api_keys(self) -> tuple[IssuedKey, ...]:
        return self._read(read_part, _KeyList, self._client.json("/v1/keys")).keys

    def revoke_key(self, key_id: str, reason: str) -> tuple[str, ...]:
        """The valid keys that this one made, as far as the caller keeps them."""
        found = self._client.json(f"/v1/keys/{_part(key_id)}/revoke", body={"reason": reason})
        return self._read(read_part, _RevokedKey, found).made

    def sessions(self) -> tuple[OpenSession, ...]:
        return self._read(read_part, _SessionList, self._client.json("/v1/sessions")).sessions

    def revoke_session(self, session_id: str, reason: str) -> OpenSession:
        found = self._client.json(f"/v1/sessions/{_part(session_id)}/revoke", body={"reason": reason})
        return self._read(read_part, OpenSession, found)

    def _pages(self, params: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        page, pages = 0, 1
        while page < pages:
            page += 1
            found = self._client.json("/v1/allocations", {**params, "page": str(page)})
            pages = found.get("pages", 1) if isinstance(found, Mapping) else 1
            if type(pages) is not int or pages > _MOST_PAGES:
                raise self._strange(f"a number of pages that is none, or more than {_MOST_PAGES:,}")
            yield found

    def _answer(self, kind: type[R], path: str, params: Params) -> ReportAnswer[R]:
        found = self._client.json(path, _given(params))
        return ReportAnswer(self._read(read_document, kind, found), self._stand(found))

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
class _BookedDifferences:
    booked: int


@dataclass(frozen=True, slots=True)
class _NewKey:
    key: str


@dataclass(frozen=True, slots=True)
class _RevokedKey:
    made: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _KeyList:
    keys: tuple[IssuedKey, ...]


@dataclass(frozen=True, slots=True)
class _SessionList:
    sessions: tuple[OpenSession, ...]


def words(values: Sequence[str] | None) -> str | None:
    """Several values of one parameter; None for none."""
    return ",".join(values) if values else None


def _given(params: Params) -> dict[str, str]:
    return {name: value for name, value in params.items() if value is not None}


def _part(text: str) -> str:
    """A value as one part of a path: ``.`` and ``..`` would lead elsewhere."""
    return quote(text, safe="").replace(".", "%2E") if text.strip(".") == "" else quote(text, safe="")
