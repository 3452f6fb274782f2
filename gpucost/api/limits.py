"""How large the body of a request may be."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.kube.manifests.documents import MOST_BYTES
from gpucost.notify.alertmanager import MAX_BYTES

ADVICE_PATH = "/v1/advisor/advice"
LARGEST_MANIFEST = MOST_BYTES
"""Bytes of a request there, JSON or YAML."""
ALERTS_PATH = "/v1/alerts/alertmanager"
LARGEST_GROUP = MAX_BYTES
_LARGER: Mapping[str, int] = {ADVICE_PATH: LARGEST_MANIFEST, ALERTS_PATH: LARGEST_GROUP}


def most_bytes(path: str, usual: int) -> int:
    """The largest body on ``path``; ``usual`` is ``api.max_body_bytes``."""
    return _LARGER.get(path, usual)
