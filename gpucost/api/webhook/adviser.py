"""A review to its warnings, in the process that knows the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucost.advisor.answers import Decision
from gpucost.advisor.redact import redact_advice
from gpucost.api.webhook.desk import Outcome
from gpucost.api.webhook.warnings import warnings_of
from gpucost.api.webhook.wire import Result
from gpucost.domain.errors import InputError
from gpucost.service.advising import Advising, NoState

# Suggestions are verified by asking again, about ten times: they are tried if that fits into what is left.
_ASKED_AGAIN = 12


@dataclass(frozen=True, slots=True)
class Adviser:
    """Advice for whoever works in the namespace of the review. Called by one thread only."""

    advising: Advising

    def __call__(self, document: Mapping[str, Any], until_s: float, tell: Callable[[Outcome], None]) -> None:
        """Tells an outcome, and then perhaps a better one. ``until_s`` is the deadline on ``time.monotonic``.

        Raises whatever a rule raises.
        """
        try:
            informed = self.advising.informed()
            manifest = self.advising.read(document, informed)
        except NoState:
            tell(Outcome(Result.NO_STATE))
            return
        except InputError:
            tell(Outcome(Result.INVALID_MANIFEST))
            return
        if not informed.asks_gpus(manifest):
            tell(Outcome(Result.NO_GPUS))
            return
        reader = informed.tenants.of_namespace(manifest.namespace)
        begun_s = time.monotonic()
        found = self.advising.advise_at_admission(manifest, informed, suggestions=False)
        tell(Outcome(Result.ADVISED, warnings_of(redact_advice(found, reader))))
        now_s = time.monotonic()
        if found.decision is not Decision.NOW and (now_s - begun_s) * _ASKED_AGAIN < until_s - now_s:
            found = self.advising.advise_at_admission(manifest, informed)
            tell(Outcome(Result.ADVISED, warnings_of(redact_advice(found, reader))))
