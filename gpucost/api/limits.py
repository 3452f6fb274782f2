"""How large the body of a request may be."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.notify.alertmanager import MAX_BYTES

ADVICE_PATH = "/v1/advisor/advice"
LARGEST_MANIFEST = 256 * 1024
"""Bytes of a request there, JSON or YAML: a manifest of 100 kB is a large one, and to read 256 KiB of YAML
costs a third of a second."""
ALERTS_PATH = "/v1/alerts/alertmanager"
LARGEST_GROUP = MAX_BYTES
_LARGER: Mapping[str, int] = {ADVICE_PATH: LARGEST_MANIFEST, ALERTS_PATH: LARGEST_GROUP}


def most_bytes(path: str, usual: int) -> int:
    """The largest body on ``path``; ``usual`` is ``api.max_body_bytes``."""
    return _LARGER.get(path, usual)
