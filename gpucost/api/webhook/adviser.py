"""A review to its warnings, in the process that knows the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpucost.advisor.answers import Advice, Decision
from gpucost.advisor.redact import redact_advice
from gpucost.api.webhook.channel import Tell
from gpucost.api.webhook.desk import Outcome
from gpucost.api.webhook.warnings import warnings_of
from gpucost.api.webhook.wire import Result
from gpucost.cluster.manifest import JobManifest
from gpucost.domain.errors import InputError
from gpucost.service.advising import Advising, Informed, NoState

# Between the end of a step that took as long as thought and the deadline: the way back.
_BACK_S = 0.01
# A few samples of the wait, and suggestions, against the first answer: both ask many times.
_TIMES_FIRST = 40


@dataclass
class Cost:
    """How long a step takes, so that it is begun only where it will end in time.

    Mean and mean deviation as in RFC 6298, which follow a cluster that grows. A step that is never begun
    would never be measured again: each time that it does not fit, it counts as a little cheaper.
    """

    mean_s: float = 0.0
    deviation_s: float = 0.0
    is_known: bool = False

    def guess(self, first_s: float) -> None:
        """Before it was measured: from how long the first answer took."""
        if not self.is_known:
            self.took(first_s * _TIMES_FIRST)

    def fits(self, left_s: float) -> bool:
        """Whether to begin it."""
        if self.mean_s + 2 * self.deviation_s + _BACK_S <= left_s:
            return True
        self.mean_s, self.deviation_s = self.mean_s * 0.99, self.deviation_s * 0.99
        return False

    def took(self, seconds: float) -> None:
        if not self.is_known:
            self.mean_s, self.deviation_s, self.is_known = seconds, seconds / 2, True
            return
        self.deviation_s += (abs(seconds - self.mean_s) - self.deviation_s) / 4
        self.mean_s += (seconds - self.mean_s) / 8


@dataclass(frozen=True, slots=True)
class Step:
    """A better answer, made of the one before, and what that costs."""

    cost: Cost
    better: Callable[[JobManifest, Informed, Advice], Advice]


@dataclass(frozen=True)
class Adviser:
    """Advice for whoever works in the namespace of the review. Called by one thread only."""

    advising: Advising
    _wait: Cost = field(default_factory=Cost)
    _change: Cost = field(default_factory=Cost)

    def __call__(self, document: Mapping[str, Any], until_s: float, tell: Tell) -> None:
        """Tells an outcome, and then better ones: how long it waits, what to change. Each only if ``tell``
        wants more and there is time; ``until_s`` is the deadline on ``time.monotonic``.

        Raises whatever a rule raises.
        """
        try:
            informed = self.advising.informed()
            manifest = self.advising.read(document, informed)
        except NoState:
            tell(Outcome(Result.NO_STATE), False)
            return
        except InputError:
            tell(Outcome(Result.INVALID_MANIFEST), False)
            return
        if not informed.asks_gpus(manifest):
            tell(Outcome(Result.NO_GPUS), False)
            return
        begun_s = time.monotonic()
        found = self.advising.advise_at_admission(manifest, informed)
        steps = self._steps(found.decision, until_s - _BACK_S)
        for each in steps:
            each.cost.guess(time.monotonic() - begun_s)
        while True:
            step = next((each for each in steps if each.cost.fits(until_s - time.monotonic())), None)
            if not tell(_advised(found, informed, document), step is not None) or step is None:
                return
            steps = steps[steps.index(step) + 1 :]
            begun_s = time.monotonic()
            found = step.better(manifest, informed, found)
            step.cost.took(time.monotonic() - begun_s)

    def _steps(self, decision: Decision, until_s: float) -> Sequence[Step]:
        """What may follow the first answer, in this order. Each ends soon after ``until_s``."""
        if decision is Decision.NOW:
            return ()
        change = Step(self._change, partial(self._with_suggestions, until_s))
        return (
            (Step(self._wait, partial(self._with_wait, until_s)), change)
            if decision is Decision.WAITS
            else (change,)
        )

    def _with_wait(self, until_s: float, manifest: JobManifest, informed: Informed, found: Advice) -> Advice:
        del found
        return self.advising.wait_at_admission(manifest, informed, until_s=until_s)

    def _with_suggestions(
        self, until_s: float, manifest: JobManifest, informed: Informed, found: Advice
    ) -> Advice:
        better = self.advising.advise_at_admission(manifest, informed, suggestions=True, until_s=until_s)
        return replace(found, suggestions=better.suggestions)


def _advised(found: Advice, informed: Informed, written: Mapping[str, Any]) -> Outcome:
    reader = informed.tenants.of_namespace(found.subject.namespace)
    return Outcome(Result.ADVISED, warnings_of(redact_advice(found, reader, written)))
