"""TLS before a server that speaks plain HTTP: bytes go on as they come, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tls_front(port: int, tls: ssl.SSLContext) -> Iterator[int]:
    """The loopback port at which ``port`` answers by TLS, until the end of ``with``."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, behind_writer), pump(behind_reader, writer))

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        async with server:
            found.append(server.sockets[0].getsockname()[1])
            started.set()
            await asyncio.to_thread(stopped.wait)

    found: list[int] = []
    started, stopped = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert started.wait(20)
        yield found[0]
    finally:
        stopped.set()
        thread.join()
