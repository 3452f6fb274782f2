"""Small files of settings, prices and secrets, read without blocking.

Also the form of a secret that is part of the path of a webhook's URL, which a Kubernetes API server calls.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

MOST_BYTES = 32 << 20
# Opening a pipe would wait for a writer, and a device may have no end.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_small(file: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file; symbolic links, as in mounted volumes, are followed. Raises OSError, also for
    what is not a regular file (a pipe, a device, a folder) and for more than ``most`` bytes; ``strerror``
    says which.
    """
    opened = os.open(file, _READ)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "a pipe, a device or a folder, and no file")
    with os.fdopen(opened, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return content


MOST = 2
"""Tokens that are accepted at a time: the current one, and the next or the previous one."""
ALLOWED = (
    "16 to 128 of a-z, 0-9, dashes and dots, no capitals, with a letter or digit at both ends and beside "
    "each dot; or two of these, a line each"
)
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TOKEN = re.compile(rf"(?=.{{16,128}}\Z){_LABEL}(\.{_LABEL})*")


def fits_a_path(token: str) -> bool:
    """Whether an API server accepts the token as a segment of a webhook's path, and it cannot be guessed.

    A segment is a name as of RFC 1123: anything else is refused when the configuration is applied (kubernetes
    v1.34, apiserver/pkg/util/webhook/validation.go: ValidateWebhookService).
    """
    return _TOKEN.fullmatch(token) is not None


def tokens_of(text: str) -> tuple[str, ...]:
    """The tokens in ``text``, one a line; none where it is not ``ALLOWED``."""
    found = tuple(text.split("\n"))
    return found if len(found) <= MOST and all(map(fits_a_path, found)) else ()
