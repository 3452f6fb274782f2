"""What /metrics says of the process: its configuration, and what the API answered and refused."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from gpucost.api.families import family
from gpucost.domain.time import SECOND_MS
from gpucost.service import metrics as m
from gpucost.service.operations_status import OperationsStatus


def operations_families(status: OperationsStatus) -> Iterable[Metric]:
    config = status.config()
    yield family(m.CONFIG_GOOD, [] if config is None else [((), float(config.is_good))])
    yield family(m.CONFIG_LOADED, [] if config is None else [((), config.loaded_ms / SECOND_MS)])
    yield family(m.CONFIG_HASH, [] if config is None else [((config.hash,), 1.0)])
    answers = sorted(status.answers().items())
    yield family(m.API_REQUESTS, [((how, route, str(code)), n) for (how, route, code), n in answers])
    yield family(m.API_REFUSED, [((why.value,), n) for why, n in sorted(status.refusals().items())])
