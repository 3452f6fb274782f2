"""Short names for long texts: versions of notices, keys of groups."""

from __future__ import annotations

import hashlib


def short_hash(*parts: str) -> str:
    """16 hex digits that stand for ``parts``, in their order; also for text that is no proper Unicode."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]
