"""gpucost serve: the loop and the API in one process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.context import Context, context_of, now_ms
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from gpucost.api.webhook.process import WebhookProcess
    from gpucost.pricing.book import PriceBook
    from gpucost.service.advising import Advising
    from gpucost.service.settings import Settings
    from gpucost.service.settings_advisor import WebhookSettings
    from gpucost.service.watching import Watching
    from gpucost.telemetry.source import Source


def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on; else the settings say.")] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port; else the settings say.", min=0, max=65535)
    ] = None,
) -> None:
    """Bring the ledger up to date, keep it so, and answer the API."""
    from gpucost.api.running import Parts, Running
    from gpucost.service import assemble

    context = context_of(ctx)
    settings = _listening(context.settings, host, port)
    _log(context)
    book = context.book(settings)
    # Before the ledger is touched: what is wrong with these is wrong at once.
    assemble.check_notify(settings, context.teams)
    catalog = assemble.build_rules(settings.attribution, book, context.teams).catalog
    watching = assemble.build_watching(settings, catalog)
    _check_webhook(settings, watching)
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(context.ledger(create=True))
        listener = stack.enter_context(listen(settings.api.host, settings.api.port))
        source = partial(_source, settings, book)
        running = Running.of(Parts(settings, book, context.teams, ledger, source, now_ms, watching))
        webhook = None
        if running.advising is not None:
            webhook = _webhook(settings.webhook, running.advising, stack)
        running.start()
        if webhook is not None:
            webhook.start()
            typer.echo(f"gpucost: answering admission reviews on port {webhook.port}", err=True)
        typer.echo(f"gpucost: answering on {url_of(listener)}", err=True)
        try:
            answer(running.app, listener)
        finally:
            if webhook is not None:
                webhook.close()
            running.close()


def _source(settings: Settings, book: PriceBook, stopped: threading.Event) -> Source:
    from gpucost.service.assemble import open_source

    return open_source(settings, book, now_ms, stopped=stopped)


def _check_webhook(settings: Settings, watching: Watching | None) -> None:
    if settings.webhook.enabled and watching is None:
        raise InputError(
            "webhook.enabled", True, "false, or detectors.state: advice is about a cluster that is watched"
        )


def _webhook(
    settings: WebhookSettings, advising: Advising, stack: contextlib.ExitStack
) -> WebhookProcess | None:
    """The admission webhook of the settings, not started yet; ``stack`` closes its socket."""
    from gpucost.api.webhook.adviser import Adviser
    from gpucost.api.webhook.process import WebhookProcess
    from gpucost.api.webhook.server import TlsFiles

    token = settings.secret_token()
    if not settings.enabled or token is None:
        return None
    tls = None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        tls = TlsFiles(settings.tls_cert_file, settings.tls_key_file)
    listener = stack.enter_context(listen(settings.host, settings.port, "webhook"))
    limits = settings.deadline_ms, settings.in_flight
    try:
        return WebhookProcess(
            listener, Adviser(advising), advising.status, token, *limits, tls, settings.token_file
        )
    except OSError as error:
        allowed = f"PEM files that belong together ({error})"
        raise InputError("webhook.tls_cert_file", settings.tls_cert_file, allowed) from None


def listen(host: str, port: int, group: str = "api") -> socket.socket:
    """A listening socket. Raises InputError, naming ``group``'s settings, when the address cannot be used."""
    import socket

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"{group}.host and {group}.port", f"{host}:{port}", f"an address that is free ({error.strerror})"
        ) from None


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def answer(app: FastAPI, listener: socket.socket) -> None:
    """Serve ``app`` on ``listener`` until SIGTERM or Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        # A query may hold what somebody should not have put there, so no request is logged.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        limit_concurrency=256,
    )
    # uvicorn sends itself the signal again when it has ended; by then it has done its work.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _listening(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings with another address, checked like any other."""
    from gpucost.service.settings_api import ApiSettings
    from gpucost.service.settings_load import checked

    values = {name: getattr(settings.api, name) for name in ApiSettings.model_fields}
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return settings.model_copy(update={"api": checked(ApiSettings, values | given, "api.")})


def _log(context: Context) -> None:
    logging.basicConfig(
        level=logging.DEBUG if context.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    # Its debug log would hold URLs with queries; the API's own errors say enough.
    logging.getLogger("uvicorn").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.INFO)
    logging.getLogger("alembic").setLevel(logging.WARNING)
