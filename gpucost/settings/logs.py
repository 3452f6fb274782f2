"""The log: lines for people or for a log store; none can be forged, and none holds a secret.

Text from outside never begins a line: control characters are written as escapes, and a traceback is indented.
Secrets are removed from the finished text, so it does not matter which logger wrote them.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
FIELDS = ("request_id", "method", "route", "status", "ms", "principal", "auth", "reason")
"""What a line may carry beside time, level, logger and message: given as ``extra``, left out where absent."""
REQUESTS = "gpucost.requests"
"""The logger that writes one line per request."""

_REQUEST_ID: ContextVar[str] = ContextVar("gpucost_request_id", default="")
# Libraries whose debug lines are headers, SQL with its values, and URLs: not logged.
_OTHERS = (
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "httpx2",
    "httpcore2",
    "urllib3",
    "asyncio",
    "multipart",
    "mcp",
)
_STRUCK = "***"
_SHORTEST_SECRET = 6
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bgpc_([a-z0-9-]{1,32})_[^\s\"'<>&]+"), rf"gpc_\1_{_STRUCK}"),
    (re.compile(r"(?i)\b(bearer|basic|token)(\s+|%20)[A-Za-z0-9+/_.~=-]{8,}"), rf"\1 {_STRUCK}"),
    (re.compile(r"\bey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?"), _STRUCK),
    (re.compile(r"\bxox[a-z]-[A-Za-z0-9-]+|\bxapp-[A-Za-z0-9-]+"), _STRUCK),
    # User info and query: both may be secrets, whatever else the URL says.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s\"'<>?#]*@"), rf"\1{_STRUCK}@"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s\"'<>?#]*)\?[^\s\"'<>]*"), rf"\1?{_STRUCK}"),
    (re.compile(r"(/(?:services|hooks|workflows|webhook[a-z0-9]*)/)[^\s\"'<>]+"), rf"\1{_STRUCK}"),
    (re.compile(r"(?i)\b(password|passwd|secret|sig|access_token|api_?key)=[^\s&\"'<>]+"), rf"\1={_STRUCK}"),
)


@contextlib.contextmanager
def request_id(value: str) -> Iterator[None]:
    """Every line of the block carries ``value``, also in threads that the block starts work in."""
    token = _REQUEST_ID.set(value)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)


def one_line(text: str) -> str:
    """``text`` with everything escaped that is not a letter, sign or blank: line ends, terminal codes,
    NUL."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


class SecretRedactor:
    """Removes secrets: what looks like one, and the ``values`` that the settings hold."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Add more values, as after a reload; the old ones may still occur in lines."""
        found = {*self._values, *(value for value in values if len(value) >= _SHORTEST_SECRET)}
        # The longest first: one value may be part of another.
        self._values = tuple(sorted(found, key=lambda value: (-len(value), value)))

    def __call__(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, _STRUCK)
        for pattern, instead in _SECRETS:
            text = pattern.sub(instead, text)
        return text


class _Fields(logging.Filter):
    """Adds the request's id, which a formatter cannot get otherwise."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "request_id", ""):
            record.request_id = _REQUEST_ID.get()
        return True


class _TextFormatter(logging.Formatter):
    """``2026-10-01T00:00:00.000Z INFO gpucost.x [id] message``."""

    def __init__(self, redact: SecretRedactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        found = getattr(record, "request_id", "")
        mark = f"[{one_line(found)}] " if found else ""
        message = one_line(self._redact(_message(record)))
        head = f"{_time(record.created)} {record.levelname} {one_line(record.name)} {mark}{message}"
        trace = self._trace(record)
        return head if trace is None else f"{head}\n{trace}"

    def _trace(self, record: logging.LogRecord) -> str | None:
        """The traceback, indented, so that none of its lines passes for a line of the log."""
        text = _trace_of(self, record)
        if text is None:
            return None
        return "\n".join(f"    {one_line(line)}" for line in self._redact(text).splitlines())


def _json_formatter(redact: SecretRedactor) -> logging.Formatter:
    # Imported here: a log in text needs only the standard library.
    from pythonjsonlogger.json import JsonFormatter

    class Json(JsonFormatter):
        """One object a line, in ASCII, so that it is the same in every locale."""

        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            return {
                key: redact(found) if isinstance(found, str) else found for key, found in log_data.items()
            }

        def add_fields(
            self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
        ) -> None:
            del message_dict
            log_data.update(
                time=_time(record.created),
                level=record.levelname.lower(),
                logger=record.name,
                message=_message(record),
            )
            for name in FIELDS:
                if getattr(record, name, None) not in (None, ""):
                    log_data[name] = getattr(record, name)
            trace = _trace_of(self, record)
            if trace is not None:
                log_data["trace"] = trace

    return Json()


def configure(
    form: LogFormat,
    level: str,
    redact: SecretRedactor,
    *,
    requests: bool = True,
    stream: TextIO | None = None,
) -> None:
    """Send the log to stderr, or to ``stream``. A second call replaces what the first set up."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.name = "gpucost"
    handler.addFilter(_Fields())
    handler.setFormatter(_json_formatter(redact) if form == "json" else _TextFormatter(redact))
    root = logging.getLogger()
    for old in [found for found in root.handlers if found.name == handler.name]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_levels(level, requests=requests)


def set_levels(level: str, *, requests: bool = True) -> None:
    """``level`` is gpucost's own; lines of libraries are logged from ``warning`` on."""
    found = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(found)
    for name in _OTHERS:
        logging.getLogger(name).setLevel(max(found, logging.WARNING))
    logging.getLogger(REQUESTS).setLevel(logging.NOTSET if requests else logging.CRITICAL)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # wrong arguments in a library's line: the message alone
        return str(record.msg)


def _trace_of(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return None


def _time(created_s: float) -> str:
    """RFC 3339 in UTC, whatever the zone of the machine."""
    whole, milliseconds = divmod(int(created_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03}Z"
