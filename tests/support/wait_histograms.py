"""What histograms of waits say."""

from __future__ import annotations

import math

from gpucost_queue_collector.scheduler_metrics import WaitHistogram


def quantile(histogram: WaitHistogram, q: float) -> float | None:
    """The wait in seconds that the part ``q`` of all (0 to 1) did not exceed; None when nobody waited.

    As Prometheus estimates it (histogram_quantile): evenly spread within a bucket, and the highest finite
    bound when it lies beyond.
    """
    if not histogram.buckets or histogram.buckets[-1][1] <= 0:
        return None
    rank = q * histogram.buckets[-1][1]
    lower = below = 0.0
    for upper, count in histogram.buckets:
        if count >= rank and count > below:
            return lower if math.isinf(upper) else lower + (upper - lower) * (rank - below) / (count - below)
        if not math.isinf(upper):
            lower = upper
        below = count
    return lower
