"""HTTP whose whole answer has an end in time, its head too.

The timeout of a socket is that of each wait: who sends a byte now and then is never late.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class TimedAdapter(HTTPAdapter):
    """The read timeout of a request bounds all of its answer; beyond it is a read timeout."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _Incoming(io.RawIOBase):
    """What a socket receives until ``deadline``; then reading raises TimeoutError."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_Incoming(raw, sock, time.monotonic() + timeout_s))


class _HttpConnection(HTTPConnection):
    response_class = _TimedResponse


class _HttpsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
