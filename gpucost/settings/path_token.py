"""A secret that is part of a URL's path, which an API server of Kubernetes calls."""

from __future__ import annotations

import re

MOST = 2
"""Tokens that are taken at a time: the one in use, and the one that comes next or was before."""
ALLOWED = (
    "16 to 128 of a-z, 0-9, dashes and dots, no capitals, with a letter or digit at both ends and beside "
    "each dot; or two of these, a line each"
)
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TOKEN = re.compile(rf"(?=.{{16,128}}\Z){_LABEL}(\.{_LABEL})*")


def fits_a_path(token: str) -> bool:
    """Whether an API server takes it for a segment of a webhook's path, and nobody guesses it.

    A segment is a name as of RFC 1123: anything else is refused when the configuration is applied
    (kubernetes v1.34, apiserver/pkg/util/webhook/validation.go: ValidateWebhookService).
    """
    return _TOKEN.fullmatch(token) is not None


def tokens_of(text: str) -> tuple[str, ...]:
    """Those that ``text`` holds, a line each; none where it is not ``ALLOWED``."""
    found = tuple(text.split("\n"))
    return found if len(found) <= MOST and all(map(fits_a_path, found)) else ()
