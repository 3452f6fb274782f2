"""What the reflector asks of whatever carries its requests; and how bytes become lines. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from gpucost.domain.errors import GpuCostError


class TransportError(GpuCostError):
    """A request that got no usable answer. ``reason`` is one word, fit for a metric's label:

    ``unreachable`` (refused, no route, DNS), ``tls``, ``silent`` (no byte in time), ``cut`` (the connection
    ended inside the answer, or was not HTTP), ``too_large``, ``not_json``, ``token`` (its file cannot be
    used). Neither the message nor the chain of causes ever holds the token.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Response(Protocol):
    """An answer whose head has arrived. Whoever got it closes it."""

    @property
    def status(self) -> int:
        """The HTTP status; redirects are not followed."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case."""

    def read_json(self) -> Any:
        """The whole body, parsed. Raises ``TransportError``."""

    def lines(self) -> Iterator[bytes]:
        """The body line by line as it arrives, without the line ends. Raises ``TransportError``."""

    def abort(self) -> None:
        """From any thread: a read that waits for bytes ends at once."""

    def close(self) -> None:
        """Give the connection back. Never raises."""


class Transport(Protocol):
    """A way to the API server, with the address and the credentials already in it."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> Response:
        """Send a GET and wait for the head of the answer.

        ``timeout_s`` bounds every wait for bytes, of the head and of the body, not the whole. Raises
        ``TransportError``; an HTTP status, whatever it is, is an answer.
        """


def split_lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Lines from chunks that end anywhere, the last one also without its line end.

    A line longer than ``limit`` bytes is cut to them and the rest of it skipped, so that one monstrous
    object cannot fill the memory; what is left of it is not JSON any more, and its reader says so.
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
