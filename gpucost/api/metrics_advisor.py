"""What /metrics says of the advisor and of the admission webhook."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from gpucost.api.families import family
from gpucost.api.webhook.wire import Result
from gpucost.service import metrics as m
from gpucost.service.advising_status import BUCKETS_S, AdvisingStatus, Durations
from gpucost.service.learnt import Outcome


def advisor_families(status: AdvisingStatus) -> Iterator[Metric]:
    """Of a service that watches no cluster, families without samples."""
    yield family(m.ADVISOR_ANSWERS, sorted(status.answers().items()))
    seconds = HistogramMetricFamily(
        m.ADVISOR_SECONDS.name, m.ADVISOR_SECONDS.help, labels=m.ADVISOR_SECONDS.labels
    )
    for face, found in sorted(status.durations().items()):
        seconds.add_metric([face], _buckets(found), sum_value=found.sum_s)
    yield seconds
    # From 0 once there was a review, so that the first without advice is an increase.
    reviews = status.reviews()
    if reviews:
        reviews = {result.value: 0 for result in Result} | reviews
    yield family(m.WEBHOOK_REVIEWS, [((result,), count) for result, count in sorted(reviews.items())])
    ends_ms = status.certificate_end_ms()
    yield family(m.WEBHOOK_CERTIFICATE_EXPIRY, [] if ends_ms is None else [((), ends_ms / 1000)])
    failed = status.certificate_errors()
    yield family(m.WEBHOOK_CERTIFICATE_ERRORS, [((kind,), count) for kind, count in sorted(failed.items())])
    scores = status.scores()
    if scores:
        scores = {outcome.value: 0 for outcome in Outcome} | scores
    yield family(m.WAIT_PREDICTIONS, [((outcome,), count) for outcome, count in sorted(scores.items())])
    errors = status.foretelling_errors()
    yield family(m.WAIT_PREDICTION_ERRORS, [((kind,), count) for kind, count in sorted(errors.items())])


def _buckets(found: Durations) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    bounds = (*map(str, BUCKETS_S), "+Inf")
    return list(zip(bounds, accumulate(map(float, found.counts)), strict=True))
