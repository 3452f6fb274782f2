"""What each service is sent, against a loopback chat, and what its answers mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import SecretStr

from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.notices import DeliveryAct
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.http import MOST_BYTES, ChannelHttpClient
from gpucost.notify.sending.sender import ChannelTransports, token_of
from tests.notify.sending_worlds import (
    NOW_MS,
    channel,
    mattermost_bot,
    outgoing,
    slack_bot,
    slack_webhook,
)
from tests.support.chat_server import ROOM, ChatServer, Trouble, chat_server

NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


def deliver(
    to: NotificationChannel, act: DeliveryAct = DeliveryAct.OPEN, reference: str = "", **values: Any
) -> str:
    return ChannelTransports(now_ns=lambda: NOW_MS * 1_000_000).deliver(
        to, outgoing(act, reference, **values)
    )


@pytest.mark.parametrize("service", [ChannelService.SLACK, ChannelService.MATTERMOST, ChannelService.TEAMS])
def test_a_webhook_takes_a_message_and_no_update(chat: ChatServer, service: ChannelService) -> None:
    urls = {
        ChannelService.SLACK: chat.slack_webhook,
        ChannelService.MATTERMOST: chat.mattermost_webhook,
        ChannelService.TEAMS: chat.teams_workflow,
    }
    to = channel(service, urls[service])
    assert deliver(to) == ""
    assert deliver(to, DeliveryAct.UPDATE) == ""
    assert deliver(to, DeliveryAct.RESOLVE) == ""
    assert len(chat.shown) == 2
    assert all("8 GPUs of team red" in shown.text for shown in chat.shown)
    assert urls[service].endswith(chat.asked[0].path)


@pytest.mark.parametrize("bot", [slack_bot, mattermost_bot])
def test_a_bot_replaces_its_message_and_answers_it(chat: ChatServer, bot: Any) -> None:
    to = bot(chat)
    reference = deliver(to)
    assert deliver(to, DeliveryAct.UPDATE, reference) == reference
    assert deliver(to, DeliveryAct.ESCALATE, reference) == reference
    assert deliver(to, DeliveryAct.RESOLVE, reference, id=2) == reference
    first, call, end = chat.shown
    assert reference.endswith(first.id)
    assert (first.edits, first.thread) == (2, "")
    assert (call.thread, end.thread) == (first.id, first.id)
    assert "98.40" in call.text, "who is called reads all of it"
    assert "98.40" not in end.text, "the answer is short: the message above has changed"


def test_an_escalation_in_slack_is_seen_in_the_room(chat: ChatServer) -> None:
    deliver(slack_bot(chat), DeliveryAct.ESCALATE, deliver(slack_bot(chat)))
    assert chat.shown[1].payload["reply_broadcast"] is True


@pytest.mark.parametrize("bot", [slack_bot, mattermost_bot])
@pytest.mark.parametrize("act", [DeliveryAct.UPDATE, DeliveryAct.RESOLVE])
def test_a_message_that_was_deleted_is_posted_again(chat: ChatServer, bot: Any, act: DeliveryAct) -> None:
    to = bot(chat)
    lost = f"{ROOM}:999.9" if to.service is ChannelService.SLACK else "gone"
    reference = deliver(to, act, lost)
    assert (len(chat.shown), reference) != (0, lost)
    assert reference.endswith(chat.shown[0].id)


def test_mattermost_recognises_a_post_that_comes_twice(chat: ChatServer) -> None:
    assert deliver(mattermost_bot(chat)) == deliver(mattermost_bot(chat))
    assert len(chat.shown) == 1
    deliver(mattermost_bot(chat), id=2)
    assert len(chat.shown) == 2
    assert token_of(outgoing().post) != token_of(outgoing(channel="other").post)


def test_a_wrong_token_is_refused(chat: ChatServer) -> None:
    with pytest.raises(Refused, match="answered 200, but not that it took the message \\(invalid_auth\\)"):
        deliver(slack_bot(chat, token=SecretStr("xoxb-hunter2")))


REFUSED = [
    (Trouble(400, b"invalid_payload"), "400 (invalid_payload)"),
    (Trouble(403, b"action_prohibited"), "403 (action_prohibited)"),
    (Trouble(404, b"channel_not_found"), "404 (channel_not_found)"),
    (Trouble(410, b"channel_is_archived"), "410 (channel_is_archived)"),
    (Trouble(401, b"<html>hunter2</html>"), "401 (an error without a code)"),
    (Trouble(404, b"xyzhunter2"), "404 (an error without a code)"),
    (Trouble(404, b"T0ABHunter"), "404 (an error without a code)"),
    (Trouble(404, b"hunter" * 5), "404 (an error without a code)"),
    (Trouble.json({"id": "api.post.create.app_error"}, 403), "403 (api.post.create.app_error)"),
    (Trouble.json({"ok": False, "error": "channel_not_found"}), "(channel_not_found)"),
    (Trouble(200, b"<html>Please log in: hunter2</html>"), "not that it took the message"),
    (Trouble(302, b"", {"Location": "http://169.254.169.254/"}), "302, a redirect, which is not followed"),
    (Trouble(200, b"x" * (MOST_BYTES + 1)), "more than 65,536 bytes"),
]
RETRIED = [
    (Trouble(429, b"", {"Retry-After": "7"}), 7.0),
    (Trouble(429, b"", {"Retry-After": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}), 30.0),
    (Trouble(429, b"", {"Retry-After": "soon"}), None),
    (Trouble(429, b"", {"Retry-After": "-5"}), None),
    (Trouble(500, b"oops"), None),
    (Trouble(503, b"", {"Retry-After": "9"}), 9.0),
    (Trouble.json({"ok": False, "error": "ratelimited"}, 200, **{"Retry-After": "3"}), 3.0),
    (Trouble.json({"ok": False, "error": "internal_error"}), None),
    (Trouble(cut=True), None),
]


@pytest.mark.fault(62)
@pytest.mark.parametrize(("trouble", "said"), REFUSED)
def test_what_never_will_is_refused(chat: ChatServer, trouble: Trouble, said: str) -> None:
    chat.always = trouble
    with pytest.raises(Refused) as refused:
        deliver(slack_webhook(chat))
    assert said in str(refused.value)
    assert str(refused.value).startswith("127.0.0.1: ")
    assert "hunter2" not in str(refused.value)
    assert len(chat.asked) == 1, "a redirect is not followed"


@pytest.mark.fault(62)
@pytest.mark.parametrize(("trouble", "after_s"), RETRIED)
def test_what_may_pass_is_tried_again(chat: ChatServer, trouble: Trouble, after_s: float | None) -> None:
    chat.always = trouble
    with pytest.raises(Retry) as again:
        deliver(slack_webhook(chat))
    assert again.value.after_s == after_s
    assert "hunter2" not in str(again.value)


@pytest.mark.fault(62)
def test_teams_may_fail_within_an_answer_of_200(chat: ChatServer) -> None:
    to = channel(ChannelService.TEAMS, chat.teams_workflow)
    said = b"Webhook message delivery failed with error: Teams endpoint returned HTTP error %d with ..."
    chat.script = [Trouble(200, said % 429), Trouble(200, said % 413)]
    with pytest.raises(Retry, match="429"):
        deliver(to)
    with pytest.raises(Refused, match="413"):
        deliver(to)


@pytest.mark.fault(62)
def test_a_service_that_hangs_is_left_in_time(chat: ChatServer) -> None:
    chat.always = Trouble(hang=True)
    with pytest.raises(Retry, match="no whole answer in time"):
        ChannelHttpClient(allow_http=True, allow_private=True, total_s=2.0).send(
            "POST", chat.slack_webhook, {}
        )


@pytest.mark.fault(62)
def test_a_service_that_answers_drop_by_drop_is_left_in_time() -> None:
    from tests.support.http import Reply, scripted_server

    with (
        scripted_server(Reply(body=b"o" * 100, drip_s=0.05)) as server,
        pytest.raises(Retry, match="in time"),
    ):
        ChannelHttpClient(allow_http=True, allow_private=True, total_s=1.0).send("POST", server.url, {})


@pytest.mark.fault(62)
def test_nobody_listens() -> None:
    with chat_server() as closed:
        pass
    with pytest.raises(Retry, match=r"127.0.0.1: no connection to port \d+ \(Connection refused\)"):
        deliver(slack_webhook(closed))


def test_many_may_send_at_once(chat: ChatServer) -> None:
    threads = [threading.Thread(target=deliver, args=(slack_webhook(chat),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(chat.shown) == 8
