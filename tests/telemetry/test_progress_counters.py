"""What pods count, out of a real Prometheus: whom a series is about, falls, and values that are no count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import POD_BUSY
from gpucost.domain.time import HOUR_MS, Window, parse_instant
from gpucost.telemetry.evidence.progress_counters import counters_named, read_progress
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.source_settings import ProgressMetric, PrometheusSourceSettings
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = parse_instant("2026-10-06T10:00:00Z")
WINDOW = Window(T0, T0 + 2 * HOUR_MS)
PROMPT, ANSWER, DONE = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
)
STEPS, FACTS = "trainer_steps_total", "kube_pod_annotations"
PODS = {("a", pod): [(T0, f"uid-{pod}")] for pod in ("llm-0", "huge-0", "none-0", "down-0", "train-0")}


def series(name: str, labels: str, value: Callable[[int], float]) -> Iterator[str]:
    """A sample a minute, from five minutes before the window on."""
    for minute in range(-5, 121):
        yield f"{name}{{{labels}}} {value(minute)!r} {T0 // 1000 + 60 * minute}\n"


def text() -> Iterator[str]:
    llm = 'namespace="a",pod="llm-0",job="'
    forged = 'namespace="evil",pod="forger",exported_namespace="a",exported_pod="llm-0"'
    yield f"# TYPE {PROMPT} unknown\n"
    for job in ("pods", "services"):  # two jobs that scrape the same pod
        yield from series(PROMPT, f'{llm}{job}"', lambda minute: 200_000.0 * (minute + 5))
    yield from series(PROMPT, forged, lambda minute: 1e12 * (minute + 5))
    yield from series(
        PROMPT, 'namespace="a",pod="huge-0"', lambda minute: 1e308 if minute > 30 else 60.0 * minute
    )
    yield from series(
        PROMPT, 'namespace="a",pod="none-0"', lambda minute: float("nan") if minute > 30 else 1.0
    )
    yield from series(PROMPT, 'namespace="a",pod="down-0"', lambda minute: -10.0 * minute)
    yield f"# TYPE {ANSWER} unknown\n"
    # It begins again at 0 after an hour and a half.
    yield from series(
        ANSWER, f'{llm}pods"', lambda minute: 50_000.0 * (minute + 5 if minute < 90 else minute - 90)
    )
    yield f"# TYPE {DONE} unknown\n"
    for reason in ("stop", "length"):
        yield from series(DONE, f'{llm}pods",finished_reason="{reason}"', lambda minute: 2.0 * (minute + 5))
    yield f"# TYPE {STEPS} unknown\n"
    for rank in (0, 1):
        yield from series(
            STEPS, f'namespace="a",pod="train-0",rank="{rank}"', lambda minute: 10.0 * (minute + 5)
        )
    yield f"# TYPE {FACTS} unknown\n"
    named = 'annotation_gpucost_io_progress="steps=trainer_steps_total, tokens=trainer_steps_total"'
    for job, pod in (("kube-state-metrics", "train-0"), ("forger", "llm-0")):
        yield from series(
            FACTS, f'namespace="a",pod="{pod}",uid="uid-{pod}",job="{job}",{named}', lambda _: 1.0
        )
    yield "# EOF\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("progress") / "data"
    create_blocks(text(), data)
    with running_prometheus(data) as found:
        yield found


def read(url: str, **given: object) -> tuple[dict[tuple[str, str], list[float]], int]:
    """Amounts by pod and name, hour by hour; and how many questions it took."""
    client = PrometheusClient(url)
    believed = {"kube_": ("kube-state-metrics",)}
    settings = replace(PrometheusSourceSettings(fallback_cluster="c", jobs=believed), **given)
    found: dict[tuple[str, str], list[float]] = {}
    for _, uid, _, _, name, amount in read_progress(
        ClusterReader(client, settings, "c", WINDOW), WINDOW, PODS
    ):
        found.setdefault((str(uid).removeprefix("uid-"), str(name)), []).append(float(str(amount)))
    return found, client.stats.queries


def test_tokens_and_requests_of_a_server(url: str) -> None:
    """12 and 3 million tokens an hour, prompts and answers together; the answers fall once, and are scraped
    by one job of two. A pod of another namespace that says it was this one is not heard."""
    found, _ = read(url)
    assert found["llm-0", "tokens"] == pytest.approx([15e6, 15e6], rel=0.02)
    assert found["llm-0", "requests"] == pytest.approx([240, 240], rel=0.02)


def test_what_is_no_count_is_no_reading_and_no_zero(url: str) -> None:
    """A jump to 1e308: the hour of the jump is not counted, and nothing is after it. A NaN: no hour is."""
    found, _ = read(url)
    assert found["huge-0", "tokens"] == [0.0]
    assert ("none-0", "tokens") not in found
    assert all(0 <= amount <= 1e4 for amount in found.get(("down-0", "tokens"), []))


def test_a_counter_that_a_pod_names(url: str) -> None:
    """By its largest series: each rank counts the same steps. ``tokens`` is what servers count, and nobody is
    believed who says that he is kube-state-metrics."""
    found, _ = read(url)
    assert found["train-0", "steps"] == pytest.approx([600, 600], rel=0.02)
    assert {pod for pod, _ in found} <= {"llm-0", "huge-0", "down-0", "train-0"}
    assert ("train-0", "tokens") not in found
    assert ("llm-0", "steps") not in found


def test_one_of_the_settings_hides_what_is_known(url: str) -> None:
    found, _ = read(url, progress=(ProgressMetric("tokens", ANSWER),))
    assert found["llm-0", "tokens"] == pytest.approx([3e6, 3e6], rel=0.05)


def test_labels_of_a_series_are_believed_from_the_namespaces_of_the_settings(url: str) -> None:
    forged = ProgressMetric("own", PROMPT, from_namespaces=("evil",))
    assert read(url, progress=(forged,))[0]["llm-0", "own"] == pytest.approx([6e13, 6e13], rel=0.02)


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        ("steps=a_total, epochs=b:total", [("steps", "a_total"), ("epochs", "b:total")]),
        (f'x=a{{b="c"}},=a_total,steps,y={POD_BUSY.name},z=kube_pod_info', []),
        ("\x1b[2J=a_total", []),
    ],
)
def test_names_in_an_annotation(annotation: str, found: list[tuple[str, str]]) -> None:
    assert counters_named(annotation) == found
