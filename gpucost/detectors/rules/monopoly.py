"""One tenant that has more than half of the GPUs in use, and more than its part, while others wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor

import numpy as np

from gpucost.cluster.quota_yaml import quota_lines, volcano_patch
from gpucost.detectors.activity import Floats
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import (
    Action,
    Detection,
    Draft,
    Evidence,
    Pattern,
    Severity,
    Subject,
    SubjectKind,
    ViewTime,
    Withheld,
)
from gpucost.detectors.held import LEAST_COVERAGE, hours, lasting, with_names
from gpucost.detectors.quotas import Line, Quotas, boards_per_unit
from gpucost.detectors.rule_settings import MonopolySettings
from gpucost.detectors.series import Series, combined
from gpucost.detectors.settings import Scoped
from gpucost.detectors.tenancy import Tenancy, Tenant
from gpucost.detectors.view_times import of_holders
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds

NAME = Pattern.MONOPOLY
VARIANT = "tenant"
_MOST_WAITING = 5
_AT_LEAST = ((24 * HOUR_MS, Severity.HIGH), (8 * HOUR_MS, Severity.MEDIUM))


def run(facts: Facts, settings: Scoped[MonopolySettings]) -> Detection:
    own = settings.default
    window, now_ms = facts.history.window, facts.now_ms
    start_ms = now_ms - milliseconds(own.window)
    lacking = _lacking(facts, start_ms, own)
    if lacking:
        cluster = Subject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
        return Detection(withheld=(Withheld(NAME, cluster, lacking, lacks_data=True),))
    tenancy = Tenancy(facts, max(start_ms, window.start_ms), now_ms)
    largest = next(iter(tenancy.shares), None)
    if largest is None:
        return Detection()
    own = settings.at(queue=largest.name)
    if tenancy.shares[largest] <= own.share:
        return Detection()
    found = _judged(tenancy, largest, own)
    return Detection((found,)) if isinstance(found, Draft) else Detection(withheld=(found,))


def _lacking(facts: Facts, start_ms: int, settings: MonopolySettings) -> str:
    needed = lasting(milliseconds(settings.window))
    if facts.history.window.start_ms > start_ms:
        return f"there is a history of {lasting(facts.history.window.length_ms)}, and {needed} are needed"
    coverage = facts.history.coverage(start_ms, facts.now_ms)
    if coverage < LEAST_COVERAGE:
        return f"{coverage:.1%} of the last {needed} were observed"
    return ""


def _judged(tenancy: Tenancy, tenant: Tenant, settings: MonopolySettings) -> Draft | Withheld:
    """Of a tenant that has more than its share of what is used."""
    share, entitled = tenancy.shares[tenant], tenancy.entitlement(tenant)
    subject = _subject(tenancy.facts, tenant)
    if tenant.name in settings.agreed:
        return Withheld(NAME, subject, "its share is agreed (agreed)")
    if len(tenancy.names) == 1:
        return Withheld(NAME, subject, "nobody else used or wanted GPUs")
    if share <= settings.over_entitlement * entitled:
        because = (
            f"{share:.1%} of the use is within {settings.over_entitlement:g} times the {entitled:.1%} of"
        )
        return Withheld(NAME, subject, f"{because} the nominal quota that are its own")
    if not _borrows(tenancy, tenant):
        return Withheld(NAME, subject, f"all it used ({share:.1%} of the use) is within its nominal quota")
    found = _displaced(tenancy, tenant)
    view = tuple(
        each
        for resource, part in found.items()
        for each in of_holders(tenancy.held(tenant), resource, part, tenancy.start_ms, tenancy.end_ms)
    )
    board_ms = sum(each.board_ms for each in view)
    stretches = [_stretches(part, tenancy, settings) for part in found.values()]
    since_ms = min((each for starts in stretches for each in starts), default=None)
    if since_ms is None or board_ms < settings.pending_gpu_hours * HOUR_MS:
        because = (
            f"others waited for {hours(board_ms)} of what it borrows, and not for "
            f"{lasting(milliseconds(settings.waited))} at a time, or less than {settings.pending_gpu_hours:g}"
        )
        return Withheld(NAME, subject, because if board_ms else "nobody waited for what it borrows")
    return _draft(tenancy, tenant, settings, view, since_ms)


def _borrows(tenancy: Tenancy, tenant: Tenant) -> bool:
    resources = set(tenancy.facts.history.frames.allocations["resource"].tolist())
    borrowed = (tenancy.borrowed(tenant, resource) for resource in sorted(resources))
    return any(each.most(tenancy.start_ms, tenancy.end_ms) > 0 for each in borrowed)


def _displaced(tenancy: Tenancy, tenant: Tenant) -> Mapping[str, Series]:
    """Boards by resource."""
    found = {}
    for resource in sorted(tenancy.demand["resource"].unique()):
        boards = float(np.nan_to_num(boards_per_unit(tenancy.facts.history, resource)))
        found[resource] = combined(_times(boards), tenancy.displaced(tenant, resource))
    return found


def _stretches(displaced: Series, tenancy: Tenancy, settings: MonopolySettings) -> list[int]:
    """Starts of the stretches that are long enough."""
    starts, ends = displaced.stretches(tenancy.start_ms, tenancy.end_ms)
    found: list[int] = starts[ends - starts >= milliseconds(settings.waited)].tolist()
    return found


def _draft(
    tenancy: Tenancy, tenant: Tenant, settings: MonopolySettings, view: tuple[ViewTime, ...], since_ms: int
) -> Draft:
    share, entitled = tenancy.shares[tenant], tenancy.entitlement(tenant)
    length_ms = tenancy.end_ms - tenancy.start_ms
    view_ms = sum(each.board_ms for each in view)
    severity = next((each for least_ms, each in _AT_LEAST if view_ms >= least_ms), Severity.LOW)
    return Draft(
        NAME,
        VARIANT,
        _subject(tenancy.facts, tenant),
        since_ms,
        f"{tenant} used {share:.1%} of the GPU time of the last {lasting(length_ms)}, {entitled:.1%} of the "
        f"quota being its own, while others waited for {hours(view_ms)} of what it borrowed.",
        _evidence(tenancy, tenant),
        _action(tenancy, tenant, settings),
        # No team: it names those who waited and what others use, so it is the platform's.
        "the smaller of what it borrowed and of what others waited for, could have used and did not find "
        "free, times time; shown, not counted: it was used",
        queue="" if tenant.line is None else tenant.name,
        view=view,
        checked=("others use or want GPUs", "it borrows", "they waited, and their work would have fitted"),
        at_least=severity,
    )


def _evidence(tenancy: Tenancy, tenant: Tenant) -> tuple[Evidence, ...]:
    length_ms = tenancy.end_ms - tenancy.start_ms
    borrowed = [
        Evidence(f"borrowed {resource}, in the mean", round(amount, 2), "units", f"quotas of {tenant}")
        for resource in sorted(tenancy.demand["resource"].unique())
        if (
            amount := tenancy.borrowed(tenant, resource).integral(tenancy.start_ms, tenancy.end_ms)
            / length_ms
        )
    ]
    return (
        Evidence("share of all use", round(tenancy.shares[tenant], 4), "", "allocations"),
        Evidence("entitlement", round(tenancy.entitlement(tenant), 4), "", "nominal quota"),
        Evidence("concentration of use (HHI)", round(tenancy.hhi, 4), "", "allocations"),
        Evidence("tenants", len(tenancy.names)),
        *borrowed,
        Evidence("who waited", ", ".join(_waiting(tenancy, tenant)), "", "demand"),
    )


def _waiting(tenancy: Tenancy, tenant: Tenant) -> list[str]:
    """The other tenants that waited, those that waited for most first."""
    rows = tenancy.demand[[each != tenant for each in tenancy.demand["tenant"]]]
    time = rows["end_ms"].clip(upper=tenancy.end_ms) - rows["start_ms"].clip(lower=tenancy.start_ms)
    amounts: dict[Tenant, float] = {}
    for each, amount in zip(rows["tenant"], (time * rows["pods"] * rows["units"]).tolist(), strict=True):
        amounts[each] = amounts.get(each, 0.0) + amount
    ordered = sorted(amounts, key=lambda each: (-amounts[each], str(each)))
    return [f"{each} ({amounts[each] / HOUR_MS:.3g} unit-hours)" for each in ordered[:_MOST_WAITING]]


def _action(tenancy: Tenancy, tenant: Tenant, settings: MonopolySettings) -> Action:
    quotas, now_ms = Quotas.of(tenancy.facts.history), tenancy.end_ms
    if tenant.line is None:
        return Action(f"Give {tenant} and the others queues with quota, so that loans can be taken back.")
    rows = [
        (row.used - np.nan_to_num(row.nominal), row, resource)
        for resource in quotas.resources
        for row in quotas.at(resource, now_ms - 1)
        if row.queue == tenant.name and not np.isnan(row.used)
    ]
    if not rows:
        return Action(f"Limit what {tenant} may borrow.")
    over, row, resource = max(rows, key=lambda each: (each[0], each[2], each[1].flavor))
    nominal = float(np.nan_to_num(row.nominal))
    # Twelve digits: 0.2 x 15 is 3.
    most = floor(round((settings.over_entitlement - 1) * nominal, 12))
    frees = max(over - most, 0.0) * float(np.nan_to_num(boards_per_unit(tenancy.facts.history, resource)))
    if tenant.line is Line.VOLCANO_QUEUE:
        patch = volcano_patch(tenant.name, "capability", resource, nominal + most)
        return with_names(
            Action(f"Limit {tenant} to {nominal + most:g} {resource}.", patch, frees), tenant.name
        )
    now = {"borrowingLimit": row.borrowing_limit}
    lines = quota_lines(tenant.name, row.flavor, resource, {"borrowingLimit": most}, now)
    text = f"Let {tenant} borrow no more than {most:g} {resource}."
    return with_names(Action(text, lines, frees), tenant.name, row.flavor)


def _subject(facts: Facts, tenant: Tenant) -> Subject:
    kind = SubjectKind.TEAM if tenant.line is None else SubjectKind.QUEUE
    return Subject(kind, facts.cluster, tenant.name, uid="" if tenant.line is None else str(tenant))


def _times(factor: float) -> Callable[[Floats], Floats]:
    return lambda value: value * factor
