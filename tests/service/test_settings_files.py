"""Files of settings that are no files: a clear error, at once, and little memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucost.cli.remote.server_target import ServerCredential
from gpucost.domain.errors import ConfigError, InputError
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.configuration import fingerprint
from gpucost.service.wiring.inputs import load_book, load_teams
from gpucost.settings.secret_files import MOST_BYTES, read_small

KINDS = ("pipe", "device", "link-to-a-device", "folder", "gigabytes", "link-to-nothing", "gone")


def made(folder: Path, kind: str) -> Path:
    path = folder / "file.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        return Path("/dev/zero")
    elif kind.startswith("link"):
        path.symlink_to("/dev/zero" if kind.endswith("device") else folder / "nothing")
    elif kind == "folder":
        path.mkdir()
    elif kind == "gigabytes":
        path.touch()
        os.truncate(path, 2**40)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [load_settings, load_book, load_teams])
def test_what_is_no_file_is_told_with_its_name_and_what_is_allowed(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    path = made(tmp_path, kind)
    with pytest.raises(ConfigError, match=f"a readable file .* at most {MOST_BYTES} bytes") as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_no_file_while_the_service_runs_is_another_content(tmp_path: Path, kind: str) -> None:
    before = tmp_path / "before.yaml"
    before.write_text("pricing: {}")
    assert fingerprint((), first=before) != fingerprint((), first=made(tmp_path, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_in_no_file_is_told(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="a file that can be read"):
        ServerCredential(made(tmp_path, kind)).read()


def test_links_are_followed_since_mounted_files_are_links(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x: 1")
    (tmp_path / "link").symlink_to("real")
    assert read_small(tmp_path / "link") == b"x: 1"
