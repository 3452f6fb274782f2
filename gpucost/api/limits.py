"""How large the body of a request may be."""

from __future__ import annotations

from gpucost.kube.manifests.documents import MOST_BYTES

ADVICE_PATH = "/v1/advisor/advice"
LARGEST_MANIFEST = MOST_BYTES
"""Bytes of a request there, JSON or YAML."""


def most_bytes(path: str, usual: int) -> int:
    """The largest body on ``path``; ``usual`` is ``api.max_body_bytes``."""
    return LARGEST_MANIFEST if path == ADVICE_PATH else usual
