"""PromQL that several boards use."""

from __future__ import annotations

CLUSTER = 'cluster=~"$cluster"'
"""Of series of the exporters: a target label, which may be missing."""
GPU_CLUSTER = 'gpu_cluster=~"$cluster"'
"""Of the service's series."""
NODE = f'{CLUSTER}, node=~"$node"'
"""Of the exporters' series of one node or several."""


def rate_sum(counter: str, matchers: str, by: str = "") -> str:
    """The sum of a counter's rates, by the labels ``by`` where given."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({counter}{{{matchers}}}[$__rate_interval]))"


def or_none(expr: str, label: str, alive: str) -> str:
    """``expr`` by ``label``; while it has no series, a line of 0 called none, as long as ``alive`` has one.

    Errors and answers have no series until the first. While nobody would tell of them, the panel is empty.
    """
    return f'{expr} or on () label_replace(0 * count({alive}), "{label}", "none", "", "")'


def ratio(part: str, whole: str) -> str:
    """``part`` of ``whole``; nothing where the whole is 0: a part of nothing is not known."""
    return f"{part} / ({whole} > 0)"


def share(part: str, whole: str, by: str = "") -> str:
    """Of the teams' board time of the last 24 hours, ``part`` of ``whole`` (held, observed, busy, …)."""
    return ratio(_last_day(part, by), _last_day(whole, by))


def _last_day(part: str, by: str) -> str:
    grouped = f"sum by ({by}) " if by else "sum"
    return f'{grouped}(gpucost_team_last_day_gpu_seconds{{{GPU_CLUSTER}, part="{part}"}})'
