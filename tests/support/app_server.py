"""An app that answers on a loopback port, by TLS or plainly, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI


@contextmanager
def answering(app: FastAPI, port: int, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Its address. ``certificate`` is (certificate, key); without it, it speaks plain HTTP."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ssl_certfile=certificate and certificate[0],
            ssl_keyfile=certificate and certificate[1],
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
