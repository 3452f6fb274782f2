"""Jobs that hold more GPU than they have use for (antipatterns, section 5.2).

``fits_smaller``, ``too_many_gpus`` and ``serving_peak`` claim time of the waste ledger; ``serving_memory``,
``low_efficiency``, ``host_share`` and ``memory_over_ask`` are views. A job is told of one of them at most, in
this order.
"""

from __future__ import annotations

from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import Detection
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.oversized_common import NAME, Search
from gpucost.detectors.rules.oversized_count import too_many_gpus
from gpucost.detectors.rules.oversized_host import host_share
from gpucost.detectors.rules.oversized_memory import memory_over_ask
from gpucost.detectors.rules.oversized_servers import serving_peak
from gpucost.detectors.rules.oversized_small import fits_smaller
from gpucost.detectors.rules.oversized_teams import low_efficiency
from gpucost.detectors.rules.workloads import Workloads
from gpucost.detectors.settings import Scoped

__all__ = ["NAME", "run"]


def run(facts: Facts, settings: Scoped[OversizedRequestSettings]) -> Detection:
    search = Search(facts, settings, Workloads.of(facts.history))
    drafts = search.of_teams(list(fits_smaller(search)))
    drafts += search.of_teams(list(too_many_gpus(search)))
    drafts += search.of_teams(list(serving_peak(search, {draft.subject for draft in drafts})))
    drafts += low_efficiency(search)
    drafts += memory_over_ask(search, {draft.subject for draft in drafts})
    drafts += host_share(search)
    found = sorted(drafts, key=lambda draft: (draft.subject, draft.variant, draft.since_ms))
    told = {draft.subject for draft in drafts}
    withheld = sorted(search.withheld.values(), key=lambda each: each.subject)
    return Detection(tuple(found), tuple(each for each in withheld if each.subject not in told))
