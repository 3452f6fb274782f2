"""Files are whole or not there; links, devices and pipes are what they were; nothing drives the terminal."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode, complain, reported
from gpucost.cli.terminal.output import (
    stdout,
    tolerate_narrow_encodings,
    write,
    write_file,
    write_made,
)
from gpucost.domain.errors import InputError
from gpucost.service.wiring.demo_month import WRITTEN, DemoMonth


def test_a_file_that_exists_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "report.csv", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o600)
    link.symlink_to(file)
    write_file(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"data")
    reader.join()
    assert read == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_of_this_process_is_written_to() -> None:
    """As ``/dev/stdout`` is, where a pipe follows: a link to a name that nothing has."""
    reading, writing = os.pipe()
    try:
        write_file(Path(f"/dev/fd/{writing}"), b"data")
        assert os.read(reading, 9) == b"data"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_device_is_not_replaced() -> None:
    write_file(Path("/dev/null"), b"data")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_link_to_itself_and_a_folder_are_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in (loop, tmp_path):
        with pytest.raises(InputError, match="--output"):
            write_file(place, b"data")


def test_a_terminal_of_ascii_shows_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        tolerate_narrow_encodings()
        narrow.write("– 5 €")
        narrow.flush()
        assert raw.getvalue() == b"? 5 ?"


def test_text_of_a_server_cannot_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2J\u009b1m,b\r\nc\r\tä\u202e\u200b\n"
    escaped = "a\\x1b[2J\\x9b1m,b\r\nc\\r\tä\\u202e\\u200b\n"
    writers = (
        lambda: write(text, None),
        lambda: write_made(lambda target: target.write(text.encode()), None, is_binary=False),
    )
    for (is_terminal, shown), written in product(((True, escaped), (False, text)), writers):
        raw = io.BytesIO()
        with io.TextIOWrapper(raw, encoding="utf-8") as screen:
            monkeypatch.setattr(screen, "isatty", lambda answer=is_terminal: answer)
            monkeypatch.setattr(sys, "stdout", screen)
            written()
            assert raw.getvalue().decode() == shown
        monkeypatch.undo()


def test_a_reader_that_has_had_enough_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = os.pipe()
    os.close(read)
    pipe = os.fdopen(written, "w")
    monkeypatch.setattr(sys, "stdout", pipe)
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        stdout().print("more than anybody reads")
    with suppress(BrokenPipeError):
        pipe.close()
    assert ended.value.exit_code == ExitCode.OK


def test_a_complaint_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    complain("cluster \x1b[2J\u202egone")
    assert capsys.readouterr().err == "gpucost: cluster \\x1b[2J\\u202egone\n"


@pytest.mark.parametrize("name", WRITTEN)
def test_the_demo_replaces_nothing_and_follows_no_link(name: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "demo", tmp_path / "outside"
    folder.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"a folder without a {name}"), DemoMonth.record(folder):
        pass
    assert not outside.exists()
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("findings", "show", "abc"), "'ID': 'abc' is not allowed; allowed: a whole number of at least 1"),
        (("findings", "mute", "1.5"), "'ID': '1.5' is not allowed; allowed: a whole number of at least 1"),
        (("findings", "show", "0"), "'ID': '0' is not allowed; allowed: a whole number of at least 1"),
        (("--server", "http://127.0.0.1:9", "findings", "show", "\x1b[2J"), "'\\x1b[2J' is not allowed"),
        (
            ("serve", "--port", "99999"),
            "'--port': '99999' is not allowed; allowed: a whole number from 0 to 65535",
        ),
        (("jobs", "2026-10", "--limit", "many"), "allowed: a whole number from 1 to 1000"),
    ],
)
def test_a_wrong_number_is_refused_with_field_value_and_what_is_allowed(
    words: tuple[str, ...], says: str
) -> None:
    found = CliRunner().invoke(app, [*words])
    assert found.exit_code == ExitCode.USAGE
    assert says in found.stderr
    assert "Input should" not in found.stderr
    assert "valid integer" not in found.stderr
