"""The protocol between the reflector and its transports; and how bytes become lines. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from gpucost.domain.errors import GpuCostError


class TransportError(GpuCostError):
    """A request that got no usable answer. ``reason`` is one word, fit for a metric's label:

    ``unreachable`` (refused, no route, DNS), ``tls``, ``silent`` (no byte in time), ``cut`` (the connection
    ended inside the answer, or was not HTTP), ``overdue`` (bytes came, and the answer did not end in time),
    ``too_large``, ``not_json``, ``token`` (its file cannot be used). Neither the message nor the chain
    of causes ever holds the token.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class TooLarge(TransportError):
    """An answer longer than its limit; ``head`` is the part of it that was read."""

    def __init__(self, limit: int, head: bytes) -> None:
        self.head = head
        super().__init__("too_large", f"the answer is larger than {limit} bytes")


AnswerCheck: TypeAlias = Callable[[], None]
"""Called whenever bytes of an answer have come; it raises where they are too late."""


def no_check() -> None:
    """An answer may take any time as long as bytes of it come."""


class KubeResponse(Protocol):
    """An answer whose head has arrived. The caller closes it."""

    @property
    def status(self) -> int:
        """The HTTP status; redirects are not followed."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case."""

    def read_body(self, check: AnswerCheck = no_check) -> bytes:
        """The whole body. Raises ``TransportError``, and ``TooLarge`` for a body that exceeds the limit."""

    def read_json(self) -> Any:
        """The whole body, parsed. Raises ``TransportError``."""

    def lines(self, check: AnswerCheck = no_check) -> Iterator[bytes]:
        """The body line by line as it arrives, without the line ends. Raises ``TransportError``."""

    def abort(self) -> None:
        """From any thread: a read that waits for bytes ends at once."""

    def close(self) -> None:
        """Give the connection back. Never raises."""


class KubeTransport(Protocol):
    """A connection to the API server, with its address and credentials."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> KubeResponse:
        """Send a GET and wait for the head of the answer.

        ``timeout_s`` limits every wait for bytes, of the head and of the body, not the whole. Raises
        ``TransportError``; every HTTP status is an answer.
        """


def whole_body(chunks: Iterable[bytes], limit: int) -> bytes:
    """Chunks put together. Raises ``TooLarge`` where they are longer than ``limit`` bytes."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise TooLarge(limit, bytes(body))
    return bytes(body)


def parsed_body(body: bytes) -> Any:
    """JSON. Raises ``TransportError``."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransportError("not_json", "the answer is not JSON") from error


def split_lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Lines from chunks that end anywhere, the last one also without its line end.

    A line longer than ``limit`` bytes is cut there and the rest of it skipped, so that one huge object cannot
    fill the memory; what is left of it is not valid JSON, and its reader reports that.
    """
    held = bytearray()
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            held += part[: limit - len(held)]
            yield bytes(held)
            held.clear()
        held += rest[: limit - len(held)]
    if held:
        yield bytes(held)
