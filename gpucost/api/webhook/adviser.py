"""A review to its warnings, in the process that holds the state of the cluster.

Advice becomes the warnings of an admission: a few short lines. Kubernetes asks for at most 120 characters
each, may cut what is longer than 256, and drops warnings once all of them have 4,096 bytes (kubernetes,
staging/src/k8s.io/api/admission/v1/types.go and
staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go, v1.34). kubectl writes ``Warning: `` before
each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpucost.advisor.kueue.answer import BLOCKED
from gpucost.advisor.model.answers import (
    REST,
    STARTS_WITH,
    Advice,
    JobSuggestion,
    SchedulingDecision,
    SuggestedChangeKind,
    WaitEstimate,
    about,
)
from gpucost.advisor.model.redaction import redact_advice
from gpucost.api.webhook.admission_review import ReviewResult
from gpucost.api.webhook.deadline_queue import ReviewOutcome
from gpucost.api.webhook.ipc import Tell
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.domain.errors import InputError
from gpucost.reports.base.display import counted, money, visible
from gpucost.service.advisor.advisor_service import AdvisorService, AdvisorSnapshot, NoState

LONGEST = 120
"""Characters of one warning."""
MOST = 5
MOST_BYTES = 2_000
"""Of all warnings of one answer, in UTF-8."""

_NAME = "gpucost: "
_MOST_SHOWN = 1_000
_LONGEST_RULES = 250
"""Of an annotation of the audit trail."""

_PARTIAL = "size: "
# Short forms of the result of a suggestion.
_THEN = {
    SchedulingDecision.NOW: "would run now with one change",
    SchedulingDecision.LATER: "would start with new nodes after one change",
    SchedulingDecision.WAITS: "would wait less with one change",
}


def warnings_of(advice: Advice) -> list[str]:
    """The result, then the best suggestion and its caveats; last the rules, where the cluster may decide
    otherwise. Names in ``advice`` must be such as the reader may see."""
    lines = [_says(advice)]
    lines += [f"gets {each.removeprefix(_PARTIAL)}" for each in advice.why if each.startswith(_PARTIAL)]
    own = (each for each in advice.suggestions if each.change.kind is SuggestedChangeKind.MANIFEST)
    best = next(own, next(iter(advice.suggestions), None))
    if best is not None:
        lines.append(_suggested(best))
        lines += [f"mind: {best.caveat}"] if best.caveat else []
    lines += [f"by the rules of {advice.rules}"] if advice.rules and advice.drift else []
    return fitted(lines)


def _says(advice: Advice) -> str:
    """One sentence. The reason is the advisor's own; the words before it are shorter here, since no lines
    follow."""
    reason = advice.says.partition(": ")[2]
    match advice.decision:
        case SchedulingDecision.NOW:
            return _now(advice)
        case SchedulingDecision.LATER:
            return f"starts in about {about(advice.later_ms or 0)}, once an autoscaler has added nodes"
        case SchedulingDecision.WAITS if advice.reason == BLOCKED:
            return (
                f"{_waits(advice.wait)}: the head of queue {advice.queue} does not fit yet, "
                "and nobody passes it (StrictFIFO)"
            )
        case SchedulingDecision.WAITS:
            partly, rest, _ = advice.says.partition(": ")[0].partition(REST)
            return f"{partly + rest if rest else ''}{_waits(advice.wait)}: {reason}"
        case SchedulingDecision.NEVER:
            return f"will not run as it is: {reason}"
        case _:
            return f"no forecast: {reason}"


def _now(advice: Advice) -> str:
    nodes = {node for each in advice.pod_sets for node in each.nodes}
    runs = advice.says.partition(" on ")[0] if advice.says.startswith(STARTS_WITH) else "runs now"
    parts = [runs, f" on {counted(len(nodes), 'node')}" if nodes else ""]
    pods = sum(each.is_of_scheduler for each in advice.victims)
    gone = (counted(len(advice.victims) - pods, "workload"), counted(pods, "pod"))
    parts += [f", by preempting {each}" for each in gone if not each.startswith("0 ")]
    if advice.borrowed:
        parts.append(", on borrowed quota, which can be taken back")
    if advice.price is not None:
        parts.append(f"; {advice.price.currency} {money(advice.price.per_hour)}/h")
    return "".join(parts)


def _waits(wait: WaitEstimate | None) -> str:
    """Roughly: at admission there is time for a few samples only, whose median is given."""
    if wait is None:
        return "waits"
    if wait.p50_ms is None:
        return f"waits longer than {about(wait.horizon_ms)}"
    return f"waits about {about(wait.p50_ms)}"


def _suggested(best: JobSuggestion) -> str:
    then = _THEN.get(best.decision, "would be better off with one change")
    if best.change.kind is SuggestedChangeKind.CLUSTER:
        then += " by an administrator"
    return f"{then}: {best.says}"


def fitted(lines: Iterable[str]) -> list[str]:
    """The first ``MOST`` of ``lines``, each as it may be shown; those that no longer fit are left out."""
    found: list[str] = []
    left = MOST_BYTES
    for line in lines:
        warning = _NAME + cut(visible(line.strip(), _MOST_SHOWN).removeprefix(_NAME), LONGEST - len(_NAME))
        left -= len(warning.encode())
        if len(found) == MOST or left <= 0:
            break
        found.append(warning)
    return found


def cut(text: str, limit: int) -> str:
    """``text`` of at most ``limit`` characters, cut between words and marked with an ellipsis."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    # A word that is longer than half of the line is cut itself: a name of 253 characters is one word.
    at = kept.rfind(" ")
    return (kept[:at] if at >= limit // 2 else kept).rstrip(" ,;:(") + "…"


# Between the expected end of a step and the deadline: the way back.
_BACK_S = 0.01
# The first guess for a few samples of the wait, and for suggestions, in multiples of the first answer: both
# ask many times.
_TIMES_FIRST = 40


@dataclass
class StepLatencyEstimate:
    """How long a step takes, so that it is begun only where it will end in time.

    Mean and mean deviation as in RFC 6298, which follow a cluster that grows. A step that is never begun
    would never be measured again: each time that it does not fit, its estimate drops a little.
    """

    mean_s: float = 0.0
    deviation_s: float = 0.0
    is_known: bool = False

    def guess(self, first_s: float) -> None:
        """The estimate before the first measurement: from how long the first answer took."""
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
class AnswerStep:
    """A better answer, made from the one before, and what that costs."""

    cost: StepLatencyEstimate
    better: Callable[[JobManifest, AdvisorSnapshot, Advice], Advice]


@dataclass(frozen=True)
class AdmissionAdviser:
    """Advice for an author in the namespace of the review. Called by one thread only."""

    advising: AdvisorService
    _wait: StepLatencyEstimate = field(default_factory=StepLatencyEstimate)
    _change: StepLatencyEstimate = field(default_factory=StepLatencyEstimate)

    def __call__(self, document: Mapping[str, Any], until_s: float, tell: Tell) -> None:
        """Passes an outcome to ``tell``, and then better ones: how long the job waits, what to change. Each
        only if ``tell`` returned that more is wanted and there is time; ``until_s`` is the deadline on
        ``time.monotonic``.

        Raises whatever a rule raises.
        """
        try:
            informed = self.advising.informed()
            manifest = self.advising.read(document, informed)
        except NoState:
            tell(ReviewOutcome(ReviewResult.NO_STATE), False)
            return
        except InputError:
            tell(ReviewOutcome(ReviewResult.INVALID_MANIFEST), False)
            return
        if not informed.asks_gpus(manifest):
            tell(ReviewOutcome(ReviewResult.NO_GPUS), False)
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

    def _steps(self, decision: SchedulingDecision, until_s: float) -> Sequence[AnswerStep]:
        """The steps after the first answer, in this order. Each ends soon after ``until_s``."""
        if decision is SchedulingDecision.NOW:
            return ()
        change = AnswerStep(self._change, partial(self._with_suggestions, until_s))
        return (
            (AnswerStep(self._wait, partial(self._with_wait, until_s)), change)
            if decision is SchedulingDecision.WAITS
            else (change,)
        )

    def _with_wait(
        self, until_s: float, manifest: JobManifest, informed: AdvisorSnapshot, found: Advice
    ) -> Advice:
        del found
        return self.advising.wait_at_admission(manifest, informed, until_s=until_s)

    def _with_suggestions(
        self, until_s: float, manifest: JobManifest, informed: AdvisorSnapshot, found: Advice
    ) -> Advice:
        better = self.advising.advise_at_admission(manifest, informed, suggestions=True, until_s=until_s)
        return replace(found, suggestions=better.suggestions)


def _advised(found: Advice, informed: AdvisorSnapshot, written: Mapping[str, Any]) -> ReviewOutcome:
    reader = informed.tenants.of_namespace(found.subject.namespace)
    warnings = warnings_of(redact_advice(found, reader, written))
    return ReviewOutcome(ReviewResult.ADVISED, warnings, visible(found.rules, _LONGEST_RULES))
