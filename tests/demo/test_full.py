"""The whole stack with real programs: an idle job becomes a finding, an alert and a message; all end."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gpucost.demo.chat import ROOM, ChatPost, ChatRoom, ChatServer
from gpucost.demo.full import LONGEST_S, full, own_rules
from gpucost.demo.incident import JOB
from gpucost.demo.stack import (
    SHORT,
    ChildProgram,
    NotStarted,
    ask,
    found,
    running,
)
from gpucost.domain.errors import InputError
from tests.support.browser import running_browser, visit
from tests.support.chromium import needs_chromium
from tests.support.ports import free_port
from tests.support.prometheus import needs_prometheus

MAIN = "from gpucost.cli import main; raise SystemExit(main())"
ALERTMANAGER = shutil.which("prometheus-alertmanager")
MISSING = "prometheus-alertmanager is not installed (Debian: apt-get install prometheus-alertmanager)"

pytestmark = pytest.mark.slow


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "demo", *arguments],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"} | environment,
        timeout=880,
        check=False,
    )


@pytest.mark.fault(61)
@pytest.mark.prometheus
@pytest.mark.alertmanager
@needs_prometheus
@pytest.mark.skipif(ALERTMANAGER is None, reason=MISSING)
def test_an_idle_job_is_found_alerted_and_told_and_all_three_end(tmp_path: Path) -> None:
    done = demo("--full", "--check", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "shown: a finding, an alert and a message, and the end of all three"
    told = [line.split(" s ", 1)[1] for line in said if " s " in line[:9]]
    assert [line.split(" ", 1)[0] for line in told] == ["finding", "alert", "message:"] * 2
    assert all("finetune-forgotten" in told[n] for n in (0, 1, 2, 5))
    assert "team vision" in told[2]
    # Nothing of it runs any more: the ports are free.
    for line in said:
        if line.startswith(("Prometheus ", "Alertmanager", "chat room", "gpucost: metrics")):
            port = int(line.rsplit("127.0.0.1:", 1)[1].split("/")[0])
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0, line


def told(room: ChatRoom, title: str, words: str) -> ChatPost:
    """The message whose title begins so, once it has these words."""
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s:
        for each in room.said:
            if each.lines[0].startswith(title) and any(words in line for line in each.lines):
                return each
        time.sleep(0.5)
    raise AssertionError(
        f"no message begins with {title!r} and has {words!r}: {[each.lines for each in room.said]}"
    )


def comes_true(look: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + LONGEST_S
    while not look():
        if time.monotonic() > until_s:
            return False
        time.sleep(1)
    return True


@pytest.mark.prometheus
@pytest.mark.alertmanager
@pytest.mark.chromium
@needs_prometheus
@needs_chromium
@pytest.mark.skipif(ALERTMANAGER is None, reason=MISSING)
def test_a_browser_follows_the_link_of_a_message_to_the_finding_and_its_job(tmp_path: Path) -> None:
    # What else there is to tell depends on the hour; this job is told in each.
    with full(tmp_path, own_rules(), history=SHORT) as site, running_browser() as browser:
        site.stack.begin(site.incident)
        said = "\n".join(told(site.stack.chat.room, f"Idle allocation: {JOB} ", " a day, ").lines)
        title, job = re.findall(r"^(Idle allocation: (\S+)) \(team \S+\): ", said)[0]
        action = re.findall(r"^What to do: (.+)$", said, re.MULTILINE)[0]
        link = re.findall(r"<(https?://\S+)[|]Finding>", said)[0]
        with visit(browser, site.service) as person:
            page = person.page

            def costs_of_one_look() -> bool:
                # Each look at a job that has just begun has another rate.
                assert person.go(link).status == 200
                tile = page.locator(".tiles div").filter(has_text="A day at its rate of now")
                shown = re.findall(r"^([0-9,.]+) USD", tile.locator(".figure").inner_text())
                now = "\n".join(told(site.stack.chat.room, f"Idle allocation: {JOB} ", " a day, ").lines)
                daily = re.findall(r"^USD ([0-9,]+) a day, [0-9.]+ GPUs now$", now, re.MULTILINE)
                return [f"{Decimal(each.replace(',', '')):,.0f}" for each in shown] == daily != []

            assert comes_true(costs_of_one_look)
            assert page.locator("h1").inner_text().startswith(title)
            assert action in page.locator("section[aria-labelledby=do]").inner_text()
            assert person.violations() == []
            linked = page.locator("h1").get_by_role("link", name=job, exact=True)
            of_job = f"{site.service}{linked.get_attribute('href')}"
            assert comes_true(lambda: ask(of_job, 30.0).is_success)  # its hour is in the ledger
            linked.click()
            page.wait_for_load_state()
            assert person.here().startswith("/job?job=")
            assert page.locator("h1").inner_text().startswith(job)
            assert page.locator('a[href*="#interval-"]').count() > 0
            assert person.violations() == []
            assert person.foreign == []
            assert person.complaints == []


def test_a_program_that_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    done = demo("--full", "--dir", str(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 2
    assert "apt-get install prometheus" in done.stderr
    with pytest.raises(InputError, match="apt-get install nothing-like-it"):
        found("nothing-like-it")


@pytest.mark.parametrize("option", [["--check"], ["--rules", "some.yaml"]])
def test_options_of_the_stack_are_refused_without_it(option: list[str], tmp_path: Path) -> None:
    done = demo(*option, "--dir", str(tmp_path / "new"))
    assert done.returncode == 2
    assert "--full" in done.stderr


def test_own_rules_are_there() -> None:
    assert [file.name for file in own_rules()] == ["gpucost.rules.yaml"]


def program(folder: Path, *arguments: str, ready: str = "http://127.0.0.1:1/") -> ChildProgram:
    return ChildProgram(sys.executable, arguments, ready, folder / "log")


def test_a_program_is_ended_when_its_part_is_over(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with running(program(tmp_path, "-m", "http.server", "--bind", "127.0.0.1", str(port), ready=url)):
        assert urlopen(url).status == 200
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_program_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(NotStarted, match="the disk is full"),
        running(program(tmp_path, "-c", "import sys; sys.exit('the disk is full')")),
    ):
        pytest.fail("it never started")


@contextmanager
def chat() -> Iterator[ChatServer]:
    server = ChatServer(ChatRoom("s3cret"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def post(server: http.server.HTTPServer, method: str, token: str, **payload: str) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{server.server_address[1]}/api/{method}"
    with urlopen(Request(url, json.dumps(payload).encode(), headers)) as answer:
        return dict(json.load(answer))


def test_the_chat_room_takes_posts_changes_and_answers_and_shows_them_escaped() -> None:
    with chat() as server:
        assert post(server, "chat.postMessage", "wrong", text="x") == {"ok": False, "error": "invalid_auth"}
        first = post(server, "chat.postMessage", "s3cret", text="<script>alert(1)</script>")
        assert (first["ok"], first["channel"]) == (True, ROOM)
        post(server, "chat.postMessage", "s3cret", text="over", thread_ts=str(first["ts"]))
        changed = post(server, "chat.update", "s3cret", text="<b>new</b>", ts=str(first["ts"]))
        assert changed["ts"] == first["ts"]
        gone = post(server, "chat.update", "s3cret", text="x", ts="1.2")
        assert gone == {"ok": False, "error": "message_not_found"}
        with urlopen(server.address) as answer:
            page = answer.read().decode()
        assert [each.edits for each in server.room.said] == [1, 0]
    assert "&lt;b&gt;new&lt;/b&gt;" in page
    assert "<b>new" not in page
    assert "<script>" not in page
