"""Keeps the webhook's certificate usable: looks once in a while, and does the one thing that is to be done.

Every replica does the same. What they share is the Secret, written only over the version that was read; who
comes second reads what the first wrote. A new authority is in the webhook's configuration before the first
replica shows a certificate of it, and the old one until after the last replica has changed.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpucost.domain.backoff import FullJitter
from gpucost.kube.certificates.kept import Kept, Wanted, is_due, kept_in, renewed, settled, to_show
from gpucost.kube.certificates.objects import NotTaken, Object, Objects, Outdated
from gpucost.kube.certificates.pair import Pair, Unusable, end_of
from gpucost.kube.connect.transport import TransportError

logger = logging.getLogger(__name__)

EVERY_S = 30.0
"""Between two looks; below ``Wanted.overlap_ms`` by far."""

_BACKOFF = FullJitter(2.0, EVERY_S)
_LEAST_PAUSE_S = 0.5
_TRIES = 5


@dataclass(eq=False)
class Keeper:
    """``show`` is told certificate and key, in one PEM, when another one is to be shown. ``failed`` is told
    the kind of each failure: ``http_403``, ``unreachable``, and so on, as labels of a metric."""

    objects: Objects
    wanted: Wanted
    now: Callable[[], int]
    show: Callable[[str], None]
    failed: Callable[[str], None]
    every_s: float = EVERY_S
    rng: random.Random = field(default_factory=random.Random)
    _kept: Kept | None = None
    _shown: Pair | None = None
    _failures: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until ``close``. Never raises."""
        while not self._stop.is_set():
            self._stop.wait(self.turn())

    def close(self) -> None:
        """From any thread."""
        self._stop.set()

    def turn(self) -> float:
        """One look, whatever comes of it; seconds until the next. What was there is shown on."""
        try:
            self.look()
        except TransportError as error:
            return self._failed(error.reason, str(error))
        except NotTaken as error:
            return self._failed(f"http_{error.status}", str(error))
        except Exception as error:  # an object of a shape that nobody thought of
            logger.exception("the webhook's certificate was not looked after")
            return self._failed(type(error).__name__, "see above")
        self._failures = 0
        return self.every_s

    def look(self) -> None:
        """Bring Secret, configuration and what is shown to where they should be.

        Raises TransportError and NotTaken; by then what can be shown is.
        """
        try:
            self._kept = self._secured()
            self._kept = self._trusted(self._kept)
        finally:
            self._show()

    def _secured(self) -> Kept:
        """What the Secret holds, once that is usable and not due."""
        for _ in range(_TRIES):
            secret = self.objects.secret()
            try:
                kept = None if secret is None else kept_in(secret, self.now())
            except Unusable as error:
                logger.warning("the webhook's certificate in the Secret is replaced: %s", error)
                kept = None
            if kept is not None and not is_due(kept, self.wanted, self.now()):
                return kept
            made = renewed(kept, self._in_the_configuration(), self.wanted, self.now())
            try:
                self.objects.keep(made, secret)
            except Outdated:
                continue
            logger.info("the webhook has a new certificate in its Secret")
            return made
        raise Outdated(409, "the Secret changes faster than it is read")

    def _trusted(self, kept: Kept) -> Kept:
        """Make the configuration trust what may be shown; note since when, and later forget the old."""
        kept = self._tidied(kept)
        for _ in range(_TRIES):
            configuration = self.objects.configuration()
            if configuration is None:
                raise NotTaken(404, "there is no ValidatingWebhookConfiguration of the name in the settings")
            bundle = base64.b64encode(kept.bundle.encode()).decode()
            if all(_bundle(each) == bundle for each in configuration.get("webhooks") or ()):
                return self._noted(kept)
            try:
                self.objects.trust(configuration, bundle)
            except Outdated:
                continue
            logger.info("the webhook's configuration has its authorities")
            return self._noted(kept)
        raise Outdated(409, "the webhook's configuration changes faster than it is read")

    def _noted(self, kept: Kept) -> Kept:
        if kept.trusted_since_ms is not None:
            return kept
        return self._rewritten(kept, replace(kept, trusted_since_ms=self.now()))

    def _tidied(self, kept: Kept) -> Kept:
        return self._rewritten(kept, settled(kept, self.wanted, self.now()))

    def _rewritten(self, kept: Kept, wanted: Kept) -> Kept:
        """``wanted`` in the Secret, where that still holds ``kept``; else the next look goes on."""
        if wanted == kept:
            return kept
        secret = self.objects.secret()
        if secret is None:
            return kept
        try:
            if kept_in(secret, self.now()) != kept:
                return kept
            self.objects.keep(wanted, secret)
        except (Unusable, Outdated):
            return kept
        return wanted

    def _in_the_configuration(self) -> str:
        """All bundles there, in PEM; empty where they cannot be read."""
        try:
            configuration: Object = self.objects.configuration() or {}
        except (TransportError, NotTaken):
            return ""
        found = []
        for each in configuration.get("webhooks") or ():
            try:
                found.append(base64.b64decode(_bundle(each), validate=True).decode())
            except ValueError:
                continue
        return "\n".join(found)

    def end_ms(self) -> int | None:
        """When the certificate that is shown ends, in ms UTC; None while none is. From any thread."""
        shown = self._shown
        return None if shown is None else end_of(shown.certificate)

    def _show(self) -> None:
        if self._kept is None:
            return
        pair = to_show(self._kept, self._shown, self.wanted, self.now())
        if pair != self._shown:
            self._shown = pair
            self.show(pair.pem)

    def _failed(self, kind: str, message: str) -> float:
        self._failures += 1
        self.failed(kind)
        pause_s = max(_LEAST_PAUSE_S, _BACKOFF.pause_s(self._failures, self.rng.random()))
        logger.warning("the webhook's certificate cannot be looked after; again soon: %s", message)
        return pause_s


def _bundle(webhook: Object) -> str:
    return str((webhook.get("clientConfig") or {}).get("caBundle") or "")
