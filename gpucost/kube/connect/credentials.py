"""Tokens that change while they are used: read from a file, or asked of a program."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucost.kube.connect.secure import read_token
from gpucost.kube.connect.transport import TransportError

PLUGIN_TIMEOUT_S = 60.0
"""How long a program may take to give a token."""

_LARGEST_ANSWER = 1 << 20


class FixedHeader:
    """A token or a password that never changes."""

    def __init__(self, value: str) -> None:
        self._value = value

    def header(self, refused: str = "") -> str:  # noqa: ARG002 the form of Credentials
        """See ``gpucost.kube.connect.httpx_transport.Credentials``."""
        return self._value


class TokenFile:
    """A token in a file, read for each request: whoever replaces it needs to tell nobody."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def header(self, refused: str = "") -> str:  # noqa: ARG002 the form of Credentials
        """See ``Credentials``."""
        return f"Bearer {read_token(self._file)}"


class TokenCommand:
    """A program that prints an ExecCredential, as kubectl's plugins do. Its token is kept until refused.

    However many requests want a token at once, the program runs once. It gets no input, so one that wants
    to ask a person fails instead of waiting.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], timeout_s: float = PLUGIN_TIMEOUT_S
    ) -> None:
        self._command, self._environ, self._timeout_s = list(command), dict(environ), timeout_s
        self._lock = threading.Lock()
        self._known = ""

    def header(self, refused: str = "") -> str:
        """See ``Credentials``."""
        with self._lock:
            if not self._known or self._known == refused:
                self._known = f"Bearer {self._token()}"
            return self._known

    def _token(self) -> str:
        name = self._command[0]
        try:
            ran = subprocess.run(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            failure = f"{name}: no token within {self._timeout_s:g} s"
        except OSError as error:
            failure = f"{name}: {error.strerror}"
        else:
            token = _printed_token(ran.stdout) if ran.returncode == 0 else ""
            if token:
                return token
            failure = f"{name}: exit status {ran.returncode}, and no token that can be used"
        # What the program wrote is not shown, nor kept as a cause: a token may stand in it.
        raise TransportError("token", failure) from None


def is_header_text(text: str) -> bool:
    """Whether ``text`` may stand in a header as one word."""
    return bool(text) and all("\x21" <= letter <= "\x7e" for letter in text)


def _printed_token(output: bytes) -> str:
    try:
        token = json.loads(output[:_LARGEST_ANSWER])["status"]["token"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    return token if isinstance(token, str) and is_header_text(token) else ""
