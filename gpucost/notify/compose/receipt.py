"""Notices of jobs that have ended: one for a job, or one for all jobs of a day.

What a job held, cost and wasted, how it ended, and the one change for its next run; the rest stands on its
page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

from gpucost.domain.buckets import Waste
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, iso, parse_instant
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import amount, brief, cost, gpu_hours, owner
from gpucost.notify.message import MessageFact, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage
from gpucost.reports.base import display
from gpucost.reports.base.values import NOTHING
from gpucost.reports.job.job_receipt import DayReceipts, JobEnding, JobReceipt, gpus_words
from gpucost.reports.waste.waste_table import LABELS

_VERBS: Mapping[JobEnding, str] = {
    JobEnding.HOLDS: "so far",
    JobEnding.SUCCEEDED: "succeeded",
    JobEnding.FAILED: "failed",
    JobEnding.PREEMPTED: "was preempted",
    JobEnding.EVICTED: "was evicted",
    JobEnding.STOPPED: "was stopped",
    JobEnding.GONE: "ended",
    JobEnding.UNKNOWN: "ended",
}
_TONES: Mapping[JobEnding, MessageTone] = {
    JobEnding.SUCCEEDED: MessageTone.GOOD,
    JobEnding.FAILED: MessageTone.WARNING,
    JobEnding.PREEMPTED: MessageTone.WARNING,
    JobEnding.EVICTED: MessageTone.WARNING,
}
_HOW: Mapping[JobEnding, str] = {
    JobEnding.GONE: "deleted, or cleaned up after its end",
    JobEnding.UNKNOWN: "how it ended is not known",
}
_NAME, _SHORT, _LINE = 60, 20, 72
_TOP_JOBS = 3


def receipt_key(cluster: str, job_uid: str, day: str, team: str) -> str:
    """``receipt:prod:UID:2026-10-05:vision``; once for a job that ended on a day."""
    return f"receipt:{cluster}:{job_uid}:{day}:{team}"


def day_key(day: str, team: str, user: str = "") -> str:
    """``receipts:2026-10-05:vision:``; with a user at the end, of that user's jobs."""
    return f"receipts:{day}:{team}:{user}"


def receipt_notice(receipt: JobReceipt, links: MessageLinks, *, cluster: str, team: str) -> Notice:
    """Of one job, as its ``team`` reads it."""
    return Notice(
        key=receipt_key(cluster, receipt.job_uid, iso(receipt.span.end_ms)[:10], team),
        group=f"receipt:{cluster}:{receipt.job_uid}",
        kind=NoticeKind.RECEIPT,
        stage=NoticeStage.ONCE,
        rank=NoticeRank.INFO,
        team=owner(team),
        cluster=cluster,
        since_ms=receipt.span.end_ms,
        version="once",
        message=receipt_message(receipt, links, cluster=cluster, team=team),
        costs_nano=receipt.held.nano,
        users=receipt.users,
    )


def receipt_message(
    receipt: JobReceipt, links: MessageLinks, *, cluster: str, team: str
) -> NotificationMessage:
    whose = f" (team {display.name(team)})" if owner(team) else ""
    job, spent = display.name(receipt.job, _NAME), cost(receipt.held.nano, receipt.currency)
    called = display.name(f"{receipt.namespace}/{receipt.job}")
    return NotificationMessage(
        title=f"{job} {_VERBS[receipt.ending]}: {spent}{whose}",
        summary=_summary(receipt),
        tone=_TONES.get(receipt.ending, MessageTone.INFO),
        facts=(MessageFact("Wasted", _wasted(receipt)),),
        sections=(MessageSection(text=_next_run(receipt)),),
        links=links.one_job(receipt.job_uid, receipt.namespace, receipt.job, cluster),
        footer=f"gpucost job {quote(called)} --receipt",
    )


def _summary(receipt: JobReceipt) -> str:
    parts = [gpus_words(receipt), gpu_hours(receipt.held.board_ms)]
    busy = receipt.busy
    parts.append("use not observed" if busy is None else f"busy {display.percent(busy.mean)}")
    if receipt.waited_ms is not None:
        waited_ms = -(-receipt.waited_ms // MINUTE_MS) * MINUTE_MS
        parts.append(f"waited {display.span_of_days(waited_ms)}")
    why = receipt.ending_reason or _HOW.get(receipt.ending, "")
    return f"{', '.join(parts)}{f'; {brief(display.visible(why, 200), 60)}' if why else ''}."


def _wasted(receipt: JobReceipt) -> str:
    found = receipt.wasted
    if found is None:
        return "not known: no detector has looked at it"
    if not found.board_ms:
        return "nothing that was seen"
    spent = gpu_hours(found.board_ms) if found.nano is None else cost(found.nano, receipt.currency)
    why = ", ".join(LABELS[Waste(row.waste)].lower() for row in receipt.buckets)
    return brief(f"{spent} ({display.percent(receipt.wasted_share)}): {why}", _LINE)


def _next_run(receipt: JobReceipt) -> str:
    change = receipt.change
    return "Nothing to change is known." if change is None else f"Next run: {brief(change.text)}"


def day_notice(found: DayReceipts, links: MessageLinks, *, user: str = "") -> Notice:
    """Of all jobs of a team that ended on a day; with a ``user``, of that user's."""
    start_ms = parse_instant(f"{found.day}T00:00:00Z")
    return Notice(
        key=day_key(found.day, found.team, user),
        group=f"receipts:{found.team}:{user}",
        kind=NoticeKind.RECEIPT,
        stage=NoticeStage.ONCE,
        rank=NoticeRank.INFO,
        team=owner(found.team),
        cluster="",
        since_ms=start_ms + DAY_MS,
        version="once",
        message=day_message(found, links, user=user),
        costs_nano=found.held.nano,
        users=(user,) if user else (),
        personal=bool(user),
    )


def day_message(found: DayReceipts, links: MessageLinks, *, user: str = "") -> NotificationMessage:
    whose = display.name(user or found.team, _NAME)
    jobs = display.counted(found.count, "job")
    return NotificationMessage(
        title=f"{whose}: {jobs} ended on {found.day}",
        summary=f"{'It' if found.count == 1 else 'They'} cost {amount(found.held, found.currency)}.",
        facts=tuple(_wasted_of_day(found)),
        sections=(MessageSection(items=tuple(_lines(found))), *_next_of_day(found)),
        links=links.month(Month.parse(found.day[:7]), owner(found.team)),
        footer="gpucost job NAME --receipt",
    )


def _wasted_of_day(found: DayReceipts) -> Iterator[MessageFact]:
    known = [each.wasted for each in found.receipts if each.wasted is not None]
    if known:
        of = f" in the {len(known):,} looked at" if len(known) < found.count else ""
        yield MessageFact("Wasted", f"{cost(sum(known, NOTHING).nano, found.currency)}{of}")


def _lines(found: DayReceipts) -> Iterator[str]:
    for each in found.receipts[:_TOP_JOBS]:
        spent = cost(each.held.nano, found.currency)
        yield f"{spent}: {display.name(each.job, _SHORT)} {_VERBS[each.ending]}"
    more = found.count - min(len(found.receipts), _TOP_JOBS)
    if more > 0:
        yield f"and {more:,} more"


def _next_of_day(found: DayReceipts) -> Iterator[MessageSection]:
    """The change of the job that wasted most for want of it."""
    ranked = sorted(
        (each for each in found.receipts if each.change is not None and each.change.wasted is not None),
        key=lambda each: -((each.change.wasted.nano if each.change and each.change.wasted else 0) or 0),
    )
    for each in ranked[:1]:
        assert each.change is not None
        words = f"Next run of {display.name(each.job, _SHORT)}: {brief(each.change.text, 80)}"
        yield MessageSection(text=words)
