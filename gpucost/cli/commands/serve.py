"""gpucost serve: the loop and the API in one process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucost.cli.terminal.context import (
    CommandContext,
    context_of,
    now_ms,
    say_stale,
)
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from gpucost.api.runtime import ClusterFollower, ServiceRuntime
    from gpucost.api.webhook.ipc import Answering, Tell
    from gpucost.api.webhook.supervisor import WebhookProcess
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.advisor.advisor_service import AdvisorService
    from gpucost.service.advisor.status import AdvisorStatus
    from gpucost.service.settings.model import Settings
    from gpucost.service.wiring.configuration import ServiceConfiguration
    from gpucost.settings.logs import SecretRedactor
    from gpucost.settings.tls import ListenerCertificate
    from gpucost.telemetry.interval_source import IntervalSource

logger = logging.getLogger(__name__)


def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on; else the settings say.")] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port; else the settings say.", min=0, max=65535)
    ] = None,
) -> None:
    """Bring the ledger up to date, keep it so, and answer the API.

    SIGHUP reads the settings again, SIGTERM and Ctrl-C end it in order, and once more at once.
    """
    from gpucost.api.runtime import ConfigReloader
    from gpucost.api.server.listener import ApiListener, AppSwitch
    from gpucost.api.server.threads import take_short_turns
    from gpucost.service.wiring.configuration import ServiceConfiguration, read_as_seen
    from gpucost.settings.logs import SecretRedactor

    context = context_of(ctx)
    redact = SecretRedactor()
    read = partial(_read, context, host, port)
    # Before the ledger is opened: errors in these files show at once.
    found, seen = ServiceConfiguration.read(read), ""
    file = context.file
    if file is None or file.is_file():  # a pipe can be read once
        found, seen = read_as_seen(lambda: ServiceConfiguration.read(read), file, found.files())
    _log(context, found, redact)
    say_stale(found.book)
    settings = found.settings
    build = _Build()
    watching = build.watching(found)
    certificate = _certificate(settings)
    with contextlib.ExitStack() as stack:
        build.ledger = stack.enter_context(context.ledger(create=True))
        listener = stack.enter_context(listen(settings.api.host, settings.api.port))
        _say_if_nobody_may_ask(settings, build.ledger)
        running = build.running(found, watching)
        webhook, answering = None, None
        if running.advising is not None:
            answering = _Answering(running.advising)
            level = _level(context, settings)
            webhook = _webhook(settings, running.advising.status, answering, stack, level)

        def taken(found: ServiceConfiguration, running: ServiceRuntime) -> None:
            _log(context, found, redact)
            if answering is not None and running.advising is not None:
                answering.follow(running.advising)

        front = AppSwitch(running.app)
        reloading = ConfigReloader(
            lambda: ServiceConfiguration.read(read),
            build,
            taken,
            found,
            running,
            front,
            build.operations,
            now_ms,
            file,
            seen,
        )
        server = ApiListener(
            front, listener, certificate, lambda: reloading.configuration.settings.api.drain.total_seconds()
        )

        def stop() -> None:
            build.operations.stops()
            reloading.stop()
            server.stop()

        with signals(stop, reloading.ask):
            running.start()
            if webhook is not None:
                webhook.start()
                _say(settings, f"answering admission reviews on port {webhook.port}")
            _say(settings, f"answering on {url_of(listener, is_tls=certificate is not None)}")
            reloading.start()
            take_short_turns()
            try:
                server.run()
            finally:
                if webhook is not None:
                    webhook.close()
                reloading.close()
                logger.info("stopped")


class _Build:
    """Makes the running parts for a configuration. The ledger and the counters of the process stay."""

    ledger: Ledger

    def __init__(self) -> None:
        from gpucost.api.server.operations_status import OperationsStatus
        from gpucost.service.advisor.status import AdvisorStatus

        self.operations, self._advisor = OperationsStatus(), AdvisorStatus()

    def __call__(self, found: ServiceConfiguration) -> ServiceRuntime:
        return self.running(found, self.watching(found))

    def watching(self, found: ServiceConfiguration) -> ClusterFollower | None:
        """The watched cluster, not read yet. Raises InputError."""
        from gpucost.service.wiring.cluster import build_watching
        from gpucost.service.wiring.pipeline import build_rules

        settings = found.settings
        catalog = build_rules(settings.attribution, found.book, found.teams).catalog
        watching = build_watching(settings, catalog, now_ms)
        _check_webhook(settings, watching)
        return watching

    def running(self, found: ServiceConfiguration, watching: ClusterFollower | None) -> ServiceRuntime:
        from gpucost.api.runtime import ServiceParts, ServiceRuntime

        source = partial(_source, found.settings, found.book)
        parts = ServiceParts(
            found.settings,
            found.book,
            found.teams,
            self.ledger,
            source,
            now_ms,
            watching,
            policy=found.policy,
        )
        try:
            return ServiceRuntime.of(replace(parts, operations=self.operations, advisor_status=self._advisor))
        except BaseException:
            if watching is not None:
                watching.close()
            raise


class _Answering:
    """The adviser of the configuration in force, for a webhook that stays."""

    def __init__(self, advising: AdvisorService) -> None:
        self.follow(advising)

    def follow(self, advising: AdvisorService) -> None:
        from gpucost.api.webhook.adviser import AdmissionAdviser

        self._adviser: Answering = AdmissionAdviser(advising)

    def __call__(self, document: Mapping[str, Any], until_s: float, tell: Tell) -> None:
        self._adviser(document, until_s, tell)


@contextlib.contextmanager
def signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Iterator[None]:
    """In this block SIGTERM and Ctrl-C call ``stop``, the second of them ends the process at once, and SIGHUP
    calls ``reload``."""
    ending = (signal.SIGTERM, signal.SIGINT)

    def ends(number: int, frame: object) -> None:
        del frame
        for each in ending:
            signal.signal(each, signal.SIG_DFL)
        stop()
        # Not from here: the signal may have come while this very thread writes a line of the log.
        told = ("stopping: %s", signal.Signals(number).name)
        threading.Thread(target=logger.info, args=told, name="stopping").start()

    before = {each: signal.signal(each, ends) for each in ending}
    if reload is not None:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: reload())
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _source(settings: Settings, book: PriceBook, stopped: threading.Event) -> IntervalSource:
    from gpucost.service.wiring.source import open_source

    return open_source(settings, book, now_ms, stopped=stopped)


def _check_webhook(settings: Settings, watching: ClusterFollower | None) -> None:
    if settings.webhook.enabled and watching is None:
        raise InputError(
            "webhook.enabled", True, "false, or detectors.state: advice is about a cluster that is watched"
        )


def _webhook(
    all_settings: Settings,
    status: AdvisorStatus,
    answering: Answering,
    stack: contextlib.ExitStack,
    level: str,
) -> WebhookProcess | None:
    """The admission webhook of the settings, not started yet; ``stack`` closes its socket."""
    from gpucost.api.webhook.supervisor import WebhookProcess
    from gpucost.service.wiring.cluster import build_certificates
    from gpucost.settings.tls import TlsFiles, server_context

    settings = all_settings.webhook
    token = settings.secret_token()
    if not settings.enabled or token is None:
        return None
    tls = None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        tls = TlsFiles(settings.tls_cert_file, settings.tls_key_file)
    ca = settings.client_ca_file
    try:
        server_context(ca)
    except OSError as error:
        raise InputError("webhook.client_ca_file", ca, f"a PEM file of authorities ({error})") from None
    keeping = build_certificates(all_settings, status, now_ms)
    listener = stack.enter_context(listen(settings.host, settings.port, "webhook"))
    limits = settings.deadline_ms, settings.in_flight
    try:
        log = all_settings.log.format, level
        file = settings.token_file
        return WebhookProcess(listener, answering, status, token, *limits, tls, file, keeping, log, ca)
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


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    scheme = "https" if is_tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def answer(app: FastAPI, listener: socket.socket) -> None:
    """Serve ``app`` on ``listener`` until SIGTERM or Ctrl-C."""
    from gpucost.api.server.listener import ApiListener
    from gpucost.api.server.threads import take_short_turns

    server = ApiListener(app, listener)
    take_short_turns()
    with signals(server.stop):
        server.run()


def _certificate(settings: Settings) -> ListenerCertificate | None:
    """The listener's certificate. Raises InputError for files that cannot be used."""
    from gpucost.settings.tls import ListenerCertificate, TlsFiles

    found = settings.api
    if found.tls_cert_file is None or found.tls_key_file is None:
        return None
    try:
        return ListenerCertificate(TlsFiles(found.tls_cert_file, found.tls_key_file), "the API")
    except OSError as error:
        allowed = f"PEM files that belong together ({error})"
        raise InputError("api.tls_cert_file", str(found.tls_cert_file), allowed) from None


def _read(context: CommandContext, host: str | None, port: int | None) -> Settings:
    from gpucost.service.settings.loader import load_settings

    return _listening(load_settings(context.config), host, port)


def _listening(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings with another address, checked like any other."""
    from gpucost.service.settings.api import ApiSettings
    from gpucost.service.settings.loader import checked

    values = {name: getattr(settings.api, name) for name in ApiSettings.model_fields}
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return settings.model_copy(update={"api": checked(ApiSettings, values | given, "api.")})


def _log(context: CommandContext, found: ServiceConfiguration, redact: SecretRedactor) -> None:
    from gpucost.settings.logs import configure

    log = found.settings.log
    redact.add(found.secrets())
    configure(log.format, _level(context, found.settings), redact, requests=log.requests)


def _level(context: CommandContext, settings: Settings) -> str:
    return "debug" if context.debug else settings.log.level


def _say_if_nobody_may_ask(settings: Settings, ledger: Ledger) -> None:
    access = settings.access
    if settings.api.auth == "off" or settings.api.keys or access.oidc.issuer or access.kubernetes.enabled:
        return
    if not any(key.is_valid(now_ms()) for key in ledger.unrevoked_keys()):
        do = "gpucost key add admin --role admin makes a key, which is accepted within seconds"
        _say(settings, f"nobody may ask the API yet: there is no key, and no issuer of tokens; {do}")


def _say(settings: Settings, text: str) -> None:
    """Print ``text`` for the person who starts it, in the format of the log."""
    if settings.log.format == "json":
        logger.info("%s", text)
    else:
        typer.echo(f"gpucost: {text}", err=True)
