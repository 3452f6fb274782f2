"""The secret end of the webhook's path, and its file, which may be replaced."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

from gpucost.settings.path_token import ALLOWED, fits_a_path

logger = logging.getLogger(__name__)


class Token:
    """``first`` holds until ``file`` says another one."""

    def __init__(self, first: str, file: Path | None = None) -> None:
        self._digest, self._file = _digest(first), file
        self._read = b""

    def matches(self, given: str) -> bool:
        """In a time that says nothing of the token."""
        return hmac.compare_digest(_digest(given), self._digest)

    def renew(self) -> bool:
        """Take what the file says; whether that is another token. What cannot be used is logged, and the one
        before stays. The file is small and is read each time: its times and size may be those of before."""
        if self._file is None:
            return False
        try:
            read = self._file.read_bytes()
        except OSError as error:
            logger.warning("the webhook's token cannot be read again: %s", type(error).__name__)
            return False
        if read == self._read:
            return False
        self._read = read
        token = read.decode("utf-8", "replace").strip()
        if not fits_a_path(token):
            logger.warning("the webhook's token file does not hold %s: the token before stays", ALLOWED)
            return False
        digest = _digest(token)
        if digest == self._digest:
            return False
        self._digest = digest
        logger.info("the webhook has a new token")
        return True


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
