"""Adjustments of closed months as corrections of the month that was open when they were made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from gpucost.domain.buckets import HOLDERS_OF_NONE, Bucket
from gpucost.domain.money import round_half_even
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Month
from gpucost.ledger.db.records import Adjustment, LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.charge_corrections import ChargeAmounts, ChargeCorrection, CorrectionOrigin
from gpucost.reports.focus.charge_rows import HolderKey, resource_of, sku_price
from gpucost.reports.focus.exact_products import json_text


@dataclass(frozen=True)
class MonthCorrections:
    """Corrections that belong to ``month``, of what ``scope`` sees. They are of no cluster."""

    ledger: Ledger
    scope: Scope
    month: Month

    @cached_property
    def adjustments(self) -> list[Adjustment]:
        """Adjustments of earlier months whose corrections belong to this one."""
        ledger, scope = self.ledger, self.scope
        extent = ledger.extent(scope=scope)
        found: list[Adjustment] = []
        month = Month.of(extent.start_ms) if extent is not None else self.month
        while month < self.month:
            found += (
                each for each in ledger.adjustments(scope, month) if open_month(ledger, each) == self.month
            )
            month = month.next()
        return found

    def found(self) -> list[ChargeCorrection]:
        before: dict[tuple[Month, str, str], ChargeAmounts | None] = {}
        found = []
        for each in self.adjustments:
            key = each.month, each.team, each.job_uid
            origin, original = self._corrected(each)
            if key not in before:
                earlier = [
                    other
                    for other in self.ledger.adjustments(self.scope, each.month)
                    if (other.team, other.job_uid) == key[1:] and other.created_at_ms < each.created_at_ms
                ]
                for other in earlier:
                    change = self._change(other, origin)
                    original = change if original is None else original + change
                before[key] = original
            change = self._change(each, origin)
            team = "" if each.team in HOLDERS_OF_NONE else each.team
            found.append(ChargeCorrection(origin, change, before[key], each.reference, each.reason, team))
            reached = before[key]
            before[key] = change if reached is None else reached + change
        return found

    @staticmethod
    def _change(each: Adjustment, origin: CorrectionOrigin) -> ChargeAmounts:
        listed = each.nano
        if each.board_ms and origin.list_price_nano is not None:
            listed = round_half_even(each.board_ms * origin.list_price_nano, HOUR_MS)
        return ChargeAmounts(each.nano, listed, each.board_ms)

    def _corrected(self, each: Adjustment) -> tuple[CorrectionOrigin, ChargeAmounts | None]:
        """What the adjustment is of, as far as the ledger says it, and what was charged."""
        ledger = self.ledger
        filters = {"bucket": (str(Bucket.HELD),)}
        if each.job_uid:
            filters["job_uid"] = (each.job_uid,)
        dims = ("cluster", "node", "model", "rate_id", "namespace", "job_kind", "job", "job_uid")
        own = Scope(frozenset({each.team}), self.scope.clusters)
        lines = ledger.aggregate(own, each.month.window, dims, filters=filters)
        rates = ledger.rates(set(lines["rate_id"]) - {""})
        listed = sum(
            round_half_even(int(ms) * rates[rate_id].list_nano_per_board_hour, HOUR_MS)
            if rates[rate_id].list_nano_per_board_hour != rates[rate_id].nano_per_board_hour
            else int(nano)
            for rate_id, ms, nano in zip(lines["rate_id"], lines["board_ms"], lines["nano"], strict=True)
            if rate_id and not pd.isna(nano)
        )
        original = ChargeAmounts(int(lines["nano"].sum()), listed, int(lines["board_ms"].sum()))
        skus = {*zip(lines["model"], lines["rate_id"], strict=True)}
        places = {*zip(lines["cluster"], lines["node"], lines["model"], strict=True)}
        jobs = {
            *zip(
                *(lines[name] for name in ("cluster", "namespace", "job_kind", "job", "job_uid")), strict=True
            )
        }
        allocated, name = each.team, each.team
        if each.job_uid:
            allocated, name = f"{each.team}/{each.job_uid}", each.job_uid
            if len(jobs) == 1:
                [(cluster, *names)] = jobs
                allocated = resource_of(cluster, HolderKey("held", each.team, *names))
                name = f"{names[0]}/{names[2]}"
        model, rate_id = next(iter(skus)) if len(skus) == 1 else ("", "")
        rate = rates.get(rate_id)
        origin = CorrectionOrigin(
            charged=each.month.window,
            resource="/".join(next(iter(places))) if len(places) == 1 else None,
            allocated=None if each.team in HOLDERS_OF_NONE else allocated,
            allocated_name=name,
            tags=json_text({"gpucost/team": each.team}),
            sku=(model or "GPU") if rate is not None else "",
            sku_price=sku_price(model, rate_id) if rate is not None else "",
            price_nano=None if rate is None else rate.nano_per_board_hour,
            list_price_nano=None if rate is None else rate.list_nano_per_board_hour,
        )
        return origin, None if original.is_nothing else original


def open_month(ledger: Ledger, each: Adjustment) -> Month:
    """The billing period that an adjustment belongs to: the first month after the one that it corrects which
    was not closed when it was made."""
    month = each.month.next()
    while True:
        info = ledger.month(month)
        closed = info.state is LedgerState.CLOSED and (info.closed_at_ms or 0) <= each.created_at_ms
        if not closed:
            return month
        month = month.next()
