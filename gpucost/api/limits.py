"""How large the body of a request may be."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.notify.alertmanager import MAX_BYTES

ADVICE_PATH = "/v1/advisor/advice"
LARGEST_MANIFEST = 128 * 1024
"""Bytes of a request there, JSON or YAML: a manifest of 100 kB is a large one."""
MOST_MANIFEST_VALUES = 20_000
"""Keys, plain values, lists and mappings in it: what 100 kB of a manifest hold, twice. To read as many from
YAML takes 30 ms; of what has more no more is read."""
BYTES_A_REQUEST = 1024
"""Of a manifest, that count as one more request against ``api.rate``: to read them takes as long as to answer
a small request, about a millisecond."""
ALERTS_PATH = "/v1/alerts/alertmanager"
LARGEST_GROUP = MAX_BYTES
_LARGER: Mapping[str, int] = {ADVICE_PATH: LARGEST_MANIFEST, ALERTS_PATH: LARGEST_GROUP}


def most_bytes(path: str, usual: int) -> int:
    """The largest body on ``path``; ``usual`` is ``api.max_body_bytes``."""
    return _LARGER.get(path, usual)
