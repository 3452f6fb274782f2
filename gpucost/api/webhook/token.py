"""The secret end of the webhook's path, and its file, which may be replaced: while one token takes the place
of another, both are taken."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from gpucost.settings.path_token import ALLOWED, tokens_of
from gpucost.settings.small_file import read_small

logger = logging.getLogger(__name__)


class Token:
    """``first``, one or two a line each, holds until ``file`` says another."""

    def __init__(self, first: str, file: Path | None = None) -> None:
        self._digests, self._file = _digests(first.split("\n")), file
        self._read = b""

    def matches(self, given: str) -> bool:
        """In a time that says nothing of the token."""
        digest = _digest(given)
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0

    def renew(self) -> bool:
        """Take what the file says; whether that is another token. What cannot be used is logged, and the one
        before stays. The file is small and is read each time: its times and size may be those of before."""
        if self._file is None:
            return False
        try:
            read = read_small(self._file)
        except OSError as error:
            logger.warning("the webhook's token cannot be read again: %s", type(error).__name__)
            return False
        if read == self._read:
            return False
        self._read = read
        tokens = tokens_of(read.decode("utf-8", "replace").strip())
        if not tokens:
            logger.warning("the webhook's token file does not hold %s: the token before stays", ALLOWED)
            return False
        digests = _digests(tokens)
        if digests == self._digests:
            return False
        self._digests = digests
        logger.info("the webhook has a new token: it takes %d now", len(digests))
        return True


def _digests(tokens: Iterable[str]) -> frozenset[bytes]:
    return frozenset(map(_digest, tokens))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
