"""What wasted most in a week and is over: nothing is to be done now, but something another time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpucost.domain.waste import Waste
from gpucost.notify.compose.amounts import amount
from gpucost.notify.message import Section
from gpucost.reports import display
from gpucost.reports.causes import HELD, page_of
from gpucost.reports.digest_model import WeekDigest
from gpucost.reports.waste import JobWaste
from gpucost.reports.waste_table import LABELS

HABITS: Mapping[Waste, str] = {
    Waste.UNAVAILABLE: "save checkpoints, to move off a broken GPU at once",
    Waste.GANG_STALL: "start all members or none, through a queue",
    Waste.PREEMPTED: "save checkpoints more often, to lose less to a stop",
    Waste.IDLE: "let it end when its work is done",
    Waste.OVERSIZED: "ask for what it has used",
}
"""What avoids a bucket of held time, in a few words."""


def over_sections(digest: WeekDigest) -> Iterator[Section]:
    """One section where fewer actions go on than a digest has room for."""
    items = tuple(_item(row, digest) for row in digest.over)
    more = f" {digest.more_over:,} more are not shown." if items and digest.more_over else ""
    if digest.actions:
        if items:
            yield Section("What else wasted most", text=f"It is over.{more}", items=items)
    elif items:
        text = f"Nothing now: no finding goes on. What wasted most is over:{more}"
        yield Section("What to do", text=text, items=items)
    else:
        yield Section("What to do", text="Nothing: no finding goes on.")


def _item(row: JobWaste, digest: WeekDigest) -> str:
    """``nlp/train, idle: USD 68.80, 10.0 GPU-hours; is over. Next time: ... (page)``."""
    waste = Waste(row.waste)
    job = display.name(f"{row.namespace}/{row.job}" if row.job else "")
    of = "" if digest.team else f" of {display.name(row.team)}"
    return (
        f"{job}{of}, {LABELS[waste].lower()}: {amount(row.amount, digest.currency)}; is over. "
        f"Next time: {HABITS[waste]} ({page_of(HELD[waste])})"
    )
