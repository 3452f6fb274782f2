"""docs/metrics.md out of the metric tables: ``python -m gpucost.service.metric_docs docs/metrics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from gpucost.contract import metrics
from gpucost.service.metrics import SERVICE_METRICS, ServiceMetric

_SERVE = """## gpucost serve

What the service says on `/metrics`: costs and findings out of the ledger, and how it fares itself.
`gpu_cluster` and `owner_team` are named so that no label of the scrape's target (`cluster`, `team`) clashes
with them. All are experimental.
"""


def render() -> str:
    """The whole page, in Markdown."""
    return "\n".join([metrics.render(), _SERVE, *(_entry(metric) for metric in SERVICE_METRICS)])


def _entry(metric: ServiceMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none of its own"
    return f"### {metric.name}\n\n{metric.help}\n\n- {metric.type}\n- labels: {labels}\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or print it when none is."""
    if arguments:
        Path(arguments[0]).write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())


if __name__ == "__main__":
    main(sys.argv[1:])
