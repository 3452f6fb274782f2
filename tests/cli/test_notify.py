"""gpucost notify: a sample to a channel, dead letters, and sending them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.commands.notify import UNDELIVERED
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from tests.support.chat_server import ChatServer, Trouble, chat_server

NOW_MS = Month(2026, 12).window.start_ms
Run = Callable[..., Result]


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run(tmp_path: Path, chat: ChatServer, url: str) -> Run:
    channel = {"service": "slack", "url": chat.slack_webhook, "sees_all": True, "allow_http": True}
    channels = [{"name": "ops", **channel, "allow_private": True}, {"name": "shut", **channel}]
    settings = {
        "ledger": {"url": url},
        "notify": {"channels": channels, "routes": [{"channels": ["ops", "shut"]}]},
    }
    config = tmp_path / "gpucost.yaml"
    config.write_text(yaml.safe_dump(settings))
    return lambda *words: CliRunner().invoke(app, ["--config", str(config), "notify", *words])


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url, now=lambda: NOW_MS) as opened:
        yield opened


def give_up(ledger: Ledger, *keys: str, channel: str = "ops") -> list[int]:
    """Numbers of posts that were given up."""
    talks = [Conversation(channel, key, "g", NoticeKind.FINDING, "red", "1", NOW_MS) for key in keys]
    posts = [
        NoticeDelivery(
            channel, key, DeliveryAct.OPEN, NotificationMessage(f"{key}\x1b[2J", "words"), NOW_MS, NOW_MS
        )
        for key in keys
    ]
    ledger.tell(talks, posts)
    numbers = [each.post.id for each in ledger.due_posts(NOW_MS, (channel,), 100)]
    for number in numbers:
        ledger.post_dead(number, NOW_MS, "chat.example.com: answered 410 (channel_is_archived)")
    return numbers


def test_a_sample_arrives(run: Run, chat: ChatServer) -> None:
    result = run("test", "ops")
    assert (result.exit_code, result.stdout, result.stderr) == (
        ExitCode.OK,
        "channel ops: slack took the message\n",
        "",
    )
    assert "A sample from gpucost" in chat.shown[0].text


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (
            Trouble(410, b"channel_is_archived"),
            "answered 410 (channel_is_archived); it will not pass by itself",
        ),
        (Trouble(503), "answered 503 (an error without a code); it may pass"),
    ],
)
def test_what_the_service_says_is_told_without_the_secret(
    run: Run, chat: ChatServer, trouble: Trouble, said: str
) -> None:
    chat.always = trouble
    result = run("test", "ops")
    assert (result.exit_code, result.stderr) == (UNDELIVERED, f"gpucost: channel ops: 127.0.0.1: {said}\n")


def test_an_address_that_is_not_allowed(run: Run, chat: ChatServer) -> None:
    result = run("test", "shut")
    assert result.exit_code == UNDELIVERED
    assert "allow_private is not set" in result.stderr
    assert chat.asked == []


def test_no_such_channel(run: Run) -> None:
    result = run("test", "nobody")
    assert (result.exit_code, result.stderr) == (
        ExitCode.USAGE,
        "gpucost: CHANNEL: 'nobody' is not allowed; allowed: ops, shut\n",
    )


def test_what_was_given_up_is_listed_and_sent_again(run: Run, ledger: Ledger) -> None:
    first, second, third = give_up(ledger, "one", "two", "three")
    listed = run("dead").stdout
    assert [f"{word}\\x1b[2J" in listed for word in ("one", "two", "three")] == [True] * 3
    assert "\x1b" not in listed
    assert "answered 410 (channel_is_archived)" in listed
    found = json.loads(run("dead", "-f", "json").stdout)
    assert [row["id"] for row in found] == [third, second, first]
    assert run("resend", str(second)).stdout == "1 of 1 will be sent again\n"
    assert run("resend", "--all").stdout == "2 of 2 will be sent again\n"
    assert run("dead").stdout == "nothing was given up\n"
    assert ledger.waiting_posts()["ops"].count == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resend",), "ID: missing; allowed: ID or --all"),
        (("resend", "1", "--all"), "ID: given beside --all; allowed: ID or --all"),
        (("resend", "7"), "ID: 7 is not allowed; allowed: a number that gpucost notify dead lists"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, ledger: Ledger, words: tuple[str, ...], said: str) -> None:
    give_up(ledger, "one")
    result = run(*words)
    assert (result.exit_code, result.stderr) == (ExitCode.USAGE, f"gpucost: {said}\n")


def test_how_the_channels_stand(run: Run, ledger: Ledger) -> None:
    give_up(ledger, "one", channel="gone")
    talk = Conversation("ops", "k", "g", NoticeKind.FINDING, "red", "1", NOW_MS)
    ledger.tell(
        [talk],
        [NoticeDelivery("ops", "k", DeliveryAct.OPEN, NotificationMessage("title", ""), NOW_MS, NOW_MS)],
    )
    found = {row["channel"]: row for row in json.loads(run("status", "-f", "json").stdout)}
    assert found["ops"] == {
        "channel": "ops",
        "service": "slack",
        "waiting": 1,
        "oldest": "2026-12-01T00:00:00Z",
        "dead": 0,
    }
    assert (found["gone"]["service"], found["gone"]["dead"]) == ("not in the settings", 1)
    assert "not in the settings" in run("status").stdout
