"""The login, kept in a file that nobody else may read: ``$XDG_CONFIG_HOME/gpucost/login.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from gpucost.cli.remote.target import Credential, Target, checked_url, is_private
from gpucost.domain.errors import InputError, Remark

_NAME = "login"
_AGAIN = "gpucost logout, then gpucost login again"


def login_path() -> Path:
    """Raises InputError where there is no home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise InputError(
            "HOME", Remark("missing"), "a home, or XDG_CONFIG_HOME, to keep a login in"
        ) from None
    return folder / "gpucost" / "login.json"


def read_login() -> Target | None:
    """None without a login. Raises InputError for one that others can read, or that makes no sense."""
    try:
        path = login_path()
    except InputError:
        return None
    try:
        if not is_private(path):
            raise InputError(_NAME, str(path), f"a file of yours that nobody else can read: chmod 600 {path}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError):
        raise InputError(_NAME, str(path), f"a file that gpucost login wrote: {_AGAIN}") from None
    try:
        file, key, authority = (found[name] for name in ("file", "key", "ca_file"))
        url = checked_url(str(found["server"]), "server of the login")
    except (KeyError, TypeError):
        raise InputError(_NAME, str(path), f"a file that gpucost login wrote: {_AGAIN}") from None
    credential = Credential(Path(file) if file else None, key)
    return Target(url, credential, Path(authority) if authority else None)


def write_login(target: Target) -> Path:
    """Whole or not at all, readable for its owner only. Raises InputError where others could read it."""
    path, credential = login_path(), target.credential or Credential()
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
