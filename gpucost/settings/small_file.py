"""Files of settings, prices and secrets: small, and read without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 32 << 20
# Opening a pipe waits for who writes into it, a device has no end.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_small(file: Path, most: int = MOST_BYTES) -> bytes:
    """What is in a file, links to it followed, as mounted ones are. Raises OSError, also for what is no file
    (a pipe, a device, a folder) and for more than ``most`` bytes; ``strerror`` says which."""
    opened = os.open(file, _READ)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "a pipe, a device or a folder, and no file")
    with os.fdopen(opened, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return content
