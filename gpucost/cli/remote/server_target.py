"""The server to use, and the credential for it.

The login is kept in a file that only its owner may read: ``$XDG_CONFIG_HOME/gpucost/login.json``.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.service.settings.api import is_loopback
from gpucost.service.settings.loader import CLIENT_ENVS
from gpucost.settings.secret_files import read_small

SERVER_ENV, TOKEN_FILE_ENV, CA_FILE_ENV = CLIENT_ENVS
_LONGEST_TOKEN = 64 * 1024
_URL = "https://HOST[:PORT][/PATH], or http:// to a loopback address"


@dataclass(frozen=True)
class ServerCredential:
    """A key or a token: in a file, which is read anew each time, since Kubernetes replaces its tokens; or
    kept in the login itself."""

    file: Path | None = None
    key: str | None = field(default=None, repr=False)

    def read(self) -> str:
        """Raises InputError, which names the file and never its content."""
        if self.file is None:
            return checked_token(self.key or "", "key")
        try:
            text = read_small(self.file).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise InputError("key or token", str(self.file), f"a file that can be read ({reason})") from None
        return checked_token(text, str(self.file))


@dataclass(frozen=True)
class ServerTarget:
    """A server. Without a credential requests are anonymous, which a server on loopback may allow."""

    url: str
    credential: ServerCredential | None = None
    ca_file: Path | None = None


def checked_token(text: str, where: str) -> str:
    """A token as it is sent. Raises InputError for characters that a header cannot have."""
    token = text.strip()
    if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(where, ErrorRemark("holds no key or token"), "one line: a key gpc_…, or a token")
    if " " in token:
        raise InputError(
            where, ErrorRemark("holds more than a key or token"), "one line: a key gpc_…, or a token"
        )
    return token


def checked_url(text: str, name: str) -> str:
    """The address of a server, without a slash at its end. Raises InputError, without user and password."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise InputError(name, ErrorRemark("not an address"), _URL) from None
    if "@" in parts.netloc or parts.query or parts.fragment or any(c <= " " for c in text):
        raise InputError(
            name, ErrorRemark("holds more than an address"), f"{_URL}; keys and tokens are in files"
        )
    if not host or parts.scheme not in ("https", "http"):
        raise InputError(name, text, _URL)
    if parts.scheme == "http" and not is_loopback(host):
        raise InputError(name, text, f"{_URL}: whoever is on the way could read the key")
    return text.rstrip("/")


def existing(file: Path, name: str) -> Path:
    """Its absolute path, links left as they are. Raises InputError unless it is a file that can be read."""
    try:
        read_small(file)
        return file.absolute()
    except OSError as error:
        raise InputError(name, str(file), f"a file that can be read ({error.strerror})") from None


def is_private(path: Path) -> bool:
    """Whether the file is the user's, and no other user may read or change it."""
    found = path.stat()
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def find_target(server: str | None) -> ServerTarget | None:
    """The server of ``--server``, else of the environment, else of the login; None without any.

    The login's credential goes to its own server only, and so does that of the environment where it names a
    server: raises InputError for another ``--server``.
    """

    named = server or os.environ.get(SERVER_ENV)
    login = read_login()
    if named is None or named == "":
        return login
    url = checked_url(named, "--server" if server else SERVER_ENV)
    other = os.environ.get(SERVER_ENV)
    if server and other and os.environ.get(TOKEN_FILE_ENV) and checked_url(other, SERVER_ENV) != url:
        allowed = f"the server of {SERVER_ENV}, for which {TOKEN_FILE_ENV} is; unset one of the two"
        raise InputError("--server", server, allowed)
    token, authority = os.environ.get(TOKEN_FILE_ENV), os.environ.get(CA_FILE_ENV)
    same = login if login is not None and login.url == url else ServerTarget(url)
    return ServerTarget(
        url,
        ServerCredential(existing(Path(token), TOKEN_FILE_ENV)) if token else same.credential,
        existing(Path(authority), CA_FILE_ENV) if authority else same.ca_file,
    )


_NAME = "login"
_AGAIN = "gpucost logout, then gpucost login again"


def login_path() -> Path:
    """Raises InputError where there is no home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise InputError(
            "HOME", ErrorRemark("missing"), "a home, or XDG_CONFIG_HOME, to keep a login in"
        ) from None
    return folder / "gpucost" / "login.json"


def read_login() -> ServerTarget | None:
    """None without a login. Raises InputError for one that others can read, or that makes no sense."""
    try:
        path = login_path()
    except InputError:
        return None
    try:
        if not is_private(path):
            raise InputError(_NAME, str(path), f"a file of yours that nobody else can read: chmod 600 {path}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        raise InputError(_NAME, str(path), f"a file that gpucost login wrote: {_AGAIN}") from None
    try:
        file, key, authority = (found[name] for name in ("file", "key", "ca_file"))
        url = checked_url(str(found["server"]), "server of the login")
    except (KeyError, TypeError):
        raise InputError(_NAME, str(path), f"a file that gpucost login wrote: {_AGAIN}") from None
    credential = ServerCredential(Path(file) if file else None, key)
    return ServerTarget(url, credential, Path(authority) if authority else None)


def write_login(target: ServerTarget) -> Path:
    """Whole or not at all, readable for its owner only. Raises InputError where others could read it."""
    path, credential = login_path(), target.credential or ServerCredential()
    content = {
        "server": target.url,
        "file": None if credential.file is None else str(credential.file),
        "key": credential.key,
        "ca_file": None if target.ca_file is None else str(target.ca_file),
    }
    folder = path.parent
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not is_private(folder):
            allowed = f"a folder of yours that nobody else can read: chmod 700 {folder}"
            raise InputError(_NAME, str(folder), allowed)
        # Such files are made with mode 0600.
        with NamedTemporaryFile("w", dir=folder, prefix=".login.", delete=False) as temporary:
            try:
                json.dump(content, temporary)
                temporary.flush()
                os.fsync(temporary.fileno())
                Path(temporary.name).replace(path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InputError(_NAME, str(folder), f"a folder that can be written ({error.strerror})") from None
    return path


def forget_login() -> bool:
    """Whether there was one."""
    try:
        login_path().unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(_NAME, str(login_path()), f"a file that can be removed ({error.strerror})") from None
    return True
