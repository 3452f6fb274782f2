"""The same hour read from our exporter and from a dcgm-exporter, beside the truth.

``python -m tests.exporters.gpu.comparison docs/gpu-comparison.md`` plays the hour and writes the tables anew.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.exporters.gpu import hour
from tests.exporters.gpu.peer import SCRAPE_AT, SCRAPE_EVERY, Setting, job_of
from tests.exporters.gpu.played import Played, played_hour

Figures = Mapping[str, float]

BEGIN, END = "<!-- comparison tables -->", "<!-- /comparison tables -->"
_POD = 'exported_pod!=""'
HELD = f"sum by (exported_pod) (count_over_time(DCGM_FI_DEV_GPU_TEMP{{{_POD}}}[1h])) * 15"
BUSY = (
    f"sum by (exported_pod) (sum_over_time(DCGM_FI_DEV_GPU_UTIL{{{_POD}}}[1h])) / 100 * 15\n"
    f"  or sum by (exported_pod) (sum_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_POD}}}[1h])) * 15"
)
COUNTER = f"sum by (exported_pod) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_POD}}}[1h])) / 1000"
POWER = f"sum by (exported_pod) (sum_over_time(DCGM_FI_DEV_POWER_USAGE{{{_POD}}}[1h])) * 15"
OURS = 'sum by (pod) (last_over_time({metric}{{holder="pod"}}[2h]))'
_SHARES = {hour.MIG: 1 / 7, hour.SHARED: 1 / 4}


@dataclass(frozen=True)
class Reading:
    """A column: a query of a dcgm-exporter under a setting, and the GPUs whose share a reader puts in."""

    title: str
    query: str
    setting: Setting
    shares: tuple[str, ...] = ()

    def read(self, played: Played) -> Figures:
        found = played.by_pod(asked(self.query, job_of(self.setting)), "exported_pod")
        return {pod: value * self._share(pod) for pod, value in found.items()}

    def _share(self, name: str) -> float:
        board = next(pod.board for pod in hour.PODS if pod.name == name)
        return _SHARES[board] if board in self.shares else 1.0


@dataclass(frozen=True)
class Measure:
    """A table: what is measured, our counter of it, and the ways to read it from a dcgm-exporter."""

    title: str
    truth: Callable[[hour.Truth], Figures]
    ours: str
    readings: tuple[Reading, ...]


_BOTH = (hour.MIG, hour.SHARED)
MEASURES = (
    Measure(
        "GPU-seconds",
        lambda truth: truth.held,
        "gpucost_pod_gpu_held_seconds_total",
        (
            Reading("default", HELD, Setting.DEFAULT),
            Reading("virtual GPUs", HELD, Setting.VIRTUAL),
            Reading("virtual GPUs, shares put in", HELD, Setting.VIRTUAL, _BOTH),
        ),
    ),
    Measure(
        "busy seconds",
        lambda truth: truth.busy,
        "gpucost_pod_gpu_busy_seconds_total",
        (
            Reading("default", BUSY, Setting.DEFAULT),
            Reading("virtual GPUs", BUSY, Setting.VIRTUAL),
            # Per-pod rows of a time-sliced GPU are parts of the GPU already.
            Reading("virtual GPUs, shares put in", BUSY, Setting.VIRTUAL, (hour.MIG,)),
        ),
    ),
    Measure(
        "joules",
        lambda truth: truth.joules,
        "gpucost_pod_gpu_energy_joules_total",
        (
            Reading("default, counter", COUNTER, Setting.DEFAULT),
            Reading("default, power", POWER, Setting.DEFAULT),
            Reading("virtual GPUs, counter", COUNTER, Setting.VIRTUAL),
            Reading("virtual GPUs, power", POWER, Setting.VIRTUAL),
            Reading("virtual GPUs, power, shares put in", POWER, Setting.VIRTUAL, _BOTH),
        ),
    ),
)


def asked(query: str, job: str) -> str:
    """The query as it is put to the Prometheus of the hour, which has several dcgm-exporters."""
    return query.replace(_POD, f'{_POD},job="{job}"')


def error(found: float | None, truth: float) -> str:
    """The error as printed: in per cent, with one digit after the point below 10."""
    if found is None:
        return "missing"
    value = 100 * (found / truth - 1)
    text = f"{value:+.1f}" if abs(value) < 9.95 else f"{value:+.0f}"
    return f"{text.replace('-', '−') if text not in ('+0.0', '-0.0') else '0.0'} %"


def tables(played: Played) -> str:
    """The part of the page between the two marks, in Markdown."""
    return "\n\n".join([*(_table(measure, played) for measure in MEASURES), _phases(played)])


def with_tables(page: str, text: str) -> str:
    """The page with ``text`` between the marks; ``ValueError`` if it does not have them once each."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs {BEGIN} and {END}, once each")
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page, flags=re.DOTALL)


def _table(measure: Measure, played: Played) -> str:
    truth = measure.truth(hour.truth())
    ours = played.by_pod(OURS.format(metric=measure.ours))
    columns = [ours, *(reading.read(played) for reading in measure.readings)]
    titles = [measure.title, "truth", "gpucost", *(reading.title for reading in measure.readings)]
    lines = [_row(titles), "|---|" + "---:|" * (len(titles) - 1)]
    for board in (hour.WHOLE, hour.MIG, hour.SHARED, hour.LOST):
        pods = [pod.name for pod in hour.PODS if pod.board == board]
        lines += [_row([pod, _number(truth[pod]), *_errors(columns, truth, [pod])]) for pod in pods]
        if len(pods) > 1:
            total = _number(sum(truth[pod] for pod in pods))
            lines.append(_row([f"*{board}, all pods*", total, *_errors(columns, truth, pods)]))
    return "\n".join(lines)


def _errors(columns: list[Figures], truth: Figures, pods: list[str]) -> list[str]:
    expected = sum(truth[pod] for pod in pods)
    return [error(_sum(column, pods), expected) for column in columns]


def _sum(figures: Figures, pods: list[str]) -> float | None:
    found = [figures[pod] for pod in pods if pod in figures]
    return sum(found) if found else None


def _phases(played: Played) -> str:
    """What the short job looks like when scraped at other seconds of the quarter of a minute."""
    truth = hour.truth()
    ranges = []
    for title, query, expected in (
        ("GPU-seconds", HELD, truth.held["short"]),
        ("busy seconds", BUSY, truth.busy["short"]),
        ("joules by the counter", COUNTER, truth.joules["short"]),
        ("joules by power", POWER, truth.joules["short"]),
    ):
        found = [
            played.by_pod(asked(query, job_of(Setting.DEFAULT, phase)), "exported_pod").get("short")
            for phase in range(SCRAPE_EVERY)
        ]
        errors = [error(value, expected) for value in sorted(value for value in found if value is not None)]
        ends = list(dict.fromkeys([errors[0], errors[-1]]))
        missing = " or missing" if None in found else ""
        ranges.append(f"{title} {' to '.join(ends)}{missing}")
    return (
        f"The figures are of scrapes {SCRAPE_AT} s after each quarter of a minute. Over all {SCRAPE_EVERY} "
        f"phases the errors of `short` in the default setting are: {'; '.join(ranges)}."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    """Write the tables into the page named, or print them when none is."""
    with tempfile.TemporaryDirectory() as folder, played_hour(Path(folder)) as played:
        text = tables(played)
    if arguments:
        page = Path(arguments[0])
        page.write_text(with_tables(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
