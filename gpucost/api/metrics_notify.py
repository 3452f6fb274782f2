"""What /metrics says of news: what was posted, what waits, what was given up, what was held back."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from gpucost.api.families import Sample, family
from gpucost.api.services import Services
from gpucost.domain.time import SECOND_MS
from gpucost.notify.notices import Kind
from gpucost.notify.routes import Reason
from gpucost.notify.sending.status import Outcome
from gpucost.service import metrics as m

_ALL = (
    *(m.NOTIFY_POSTS, m.NOTIFY_WAITING, m.NOTIFY_OLDEST, m.NOTIFY_DEAD),
    *(m.NOTIFY_SUPPRESSED, m.NOTIFY_SUCCESS, m.NOTIFY_ERRORS),
)


class NotifyFamilies:
    """Of a service that tells nobody, families without samples."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        """Raises LedgerError."""
        telling, now_ms = self._services.telling, self._services.now()
        if telling is None:
            return [family(metric, []) for metric in _ALL]
        sent = telling.sending()
        waiting = self._services.ledger.waiting_posts()
        dead = dict.fromkeys(telling.channels, 0) | self._services.ledger.count_dead_posts()
        # From 0, so that the first one is an increase.
        posts = {
            (channel, kind.value, outcome.value): 0
            for channel in telling.channels
            for kind in Kind
            for outcome in Outcome
        } | sent.posts
        held = {(kind, reason): 0 for kind in Kind for reason in Reason} | telling.suppressed()
        counts: list[Sample] = []
        oldest: list[Sample] = []
        for channel in sorted({*telling.channels, *waiting}):
            found = waiting.get(channel)
            counts.append(((channel,), 0 if found is None else found.count))
            age_ms = 0 if found is None else max(0, now_ms - found.oldest_ms)
            oldest.append(((channel,), age_ms / SECOND_MS))
        return [
            family(m.NOTIFY_POSTS, sorted(posts.items())),
            family(m.NOTIFY_WAITING, counts),
            family(m.NOTIFY_OLDEST, oldest),
            family(m.NOTIFY_DEAD, (((channel,), count) for channel, count in sorted(dead.items()))),
            family(m.NOTIFY_SUPPRESSED, sorted(((k.value, r.value), n) for (k, r), n in held.items())),
            family(
                m.NOTIFY_SUCCESS,
                (((name,), at_ms / SECOND_MS) for name, at_ms in sorted(sent.last_success_ms.items())),
            ),
            family(m.NOTIFY_ERRORS, sorted(((kind,), n) for kind, n in telling.errors().items())),
        ]
