"""Pieces of PromQL that several rules need."""

from __future__ import annotations

from alerts import thresholds as t


def labelled(expr: str, label: str, source: str) -> str:
    """``expr`` with ``label`` set to the value of the label ``source``."""
    return f'label_replace({expr}, "{label}", "$1", "{source}", "(.*)")'


def of_service(selector: str, *labels: str) -> str:
    """A gauge of the service, once, whatever else its target is labelled with: ``cluster`` and ``team`` by
    the names that alerts have, and ``labels`` kept."""
    expr, by = selector, list(labels)
    for label, source in (("team", "owner_team"), ("cluster", "gpu_cluster")):
        if source in by:
            expr = labelled(expr, label, source)
            by[by.index(source)] = label
    return f"max by ({', '.join(by)}) ({expr})"


def money(metric: str, *labels: str) -> str:
    """A gauge in money, in whatever currency the ledger has: the label ``currency`` says which."""
    either = f'label_replace({metric}_usd, "currency", "USD", "", "") or {metric}'
    return of_service(f"({either})", *labels, "currency")


def held(now: str, record: str) -> str:
    """The expression of the recording rule ``record``: ``now``, or while the service or its ledger cannot be
    read, what it was at the evaluation before; for an hour at most."""
    recent = f"max(max_over_time(gpucost_ledger_up[{t.HELD_WHILE_AWAY.duration}])) == 1"
    return f"{now} or ({record} unless on () max(gpucost_ledger_up) == 1) and on () {recent}"


def grew(metric: str, above: object, within: str, *labels: str) -> str:
    """``metric`` where it is more than ``above``, and more than ``within`` ago, or was not there then."""
    now, then = of_service(metric, *labels), of_service(f"{metric} offset {within}", *labels)
    on = ", ".join({"gpu_cluster": "cluster", "owner_team": "team"}.get(label, label) for label in labels)
    return f"{now} > {above} unless on ({on}) {now} <= {then}"
