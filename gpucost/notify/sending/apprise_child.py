"""The process in which apprise runs: one message, read from stdin, sent, and the result on stdout.

An audit hook of Python sees every connection before it is made, with its address, whatever code makes it:
neither DNS nor a redirect can lead anywhere that is not allowed. The same hook ends attempts to start
programs, to write files, and to read any but the programs' own (``?template=/etc/shadow``), none of which a
chat needs.
"""

from __future__ import annotations

import json
import mimetypes
import os
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Any

from gpucost.notify.sending.address import LOCAL_SERVICES, trouble_with, trouble_with_service

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")


class AddressGuard:
    """Refuses connections that are not allowed, and keeps the reason: apprise swallows errors."""

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private
        self.refused: list[str] = []
        self._own = _own_folders()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SENDS and arguments[1] is not None:
            self._connect(arguments[0], arguments[1])
        elif event in _PROGRAMS:
            self._refuse("starts a program, which is not allowed")
        elif event == "open" and _writes(arguments):
            self._refuse("writes a file, which is not allowed")
        elif event == "open" and not self._is_own(arguments[0]):
            self._refuse("reads a file, which is not allowed")

    def _is_own(self, path: object) -> bool:
        """Whether a file is one of the programs' own; a descriptor is open already."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return True
        found = _absolute(os.fsdecode(path))
        return found == os.devnull or found.startswith(self._own)

    def _connect(self, connection: socket.socket, address: Any) -> None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            self._refuse("connects to something that is no network address, which is not allowed")
        trouble = trouble_with(str(address[0]), allow_private=self.allow_private)
        if trouble:
            self._refuse(f"{address[0]} {trouble}")

    def _refuse(self, why: str) -> None:
        self.refused.append(why)
        raise PermissionError(why)


def _own_folders() -> tuple[str, ...]:
    found = {
        *sys.path,
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
    return tuple(f"{_absolute(each)}{os.sep}" for each in sorted(filter(None, found)))


def _absolute(path: str) -> str:
    """Without ``..``. Links are not followed: an installation may consist of links."""
    return os.path.normpath(Path(path).absolute())


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, mode, flags = arguments
    changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    asks = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & changes)
    return asks and path != os.devnull


def send(asked: dict[str, Any]) -> tuple[str, str]:
    """``sent``, ``refused`` or ``failed``, and why, without any part of the URL but its scheme."""
    url = str(asked["url"]).strip()
    scheme = url.partition("://")[0].lower()[:20]
    trouble = trouble_with_service(url)
    if trouble:
        return "refused", trouble
    sys.dont_write_bytecode = True
    import apprise

    mimetypes.init()  # which reads files of the system
    guard = AddressGuard(bool(asked["allow_private"]))
    sys.addaudithook(guard)
    asset = apprise.AppriseAsset(http_redirects=False, async_mode=False, secure_logging=True)
    plugin = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if guard.refused:
        return "refused", guard.refused[0]
    if plugin is None:
        return "refused", f"apprise makes nothing of the {scheme}:// URL; see gpucost notify test"
    if LOCAL_SERVICES & {*_names(plugin.protocol), *_names(plugin.secure_protocol)}:
        return "refused", f"{scheme}:// is no address in the network"
    if scheme in _names(plugin.protocol) and not asked["allow_http"]:
        return "refused", f"{scheme}:// is not encrypted, and the channel's allow_http is not set"
    plugin.redirects = False  # whatever the URL says
    done = bool(plugin.notify(body=asked["body"], body_format=apprise.NotifyFormat.TEXT))
    if done:
        return "sent", ""
    if guard.refused:
        return "refused", guard.refused[0]
    return "failed", f"the {scheme}:// service did not take the message"


def _names(protocol: object) -> tuple[str, ...]:
    """The schemes of a service, of which apprise writes none, one or several."""
    return tuple(protocol) if isinstance(protocol, (list, tuple)) else (str(protocol),)


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        outcome, why = send(asked)
    except Exception as error:
        outcome, why = "failed", f"{type(error).__name__} in apprise"
    sys.stdout.write("\n" + json.dumps({"outcome": outcome, "why": why}))


if __name__ == "__main__":
    main()
