"""A secret that is part of a URL's path."""

from __future__ import annotations

import re

ALLOWED = "16 to 128 letters, digits and . _ ~ -"
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,128}")


def fits_a_path(token: str) -> bool:
    """Whether it is ``ALLOWED``: nothing that a URL would escape, and too long to be guessed."""
    return _TOKEN.fullmatch(token) is not None
