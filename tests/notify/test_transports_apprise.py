"""Every other service, through apprise in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.message import NotificationMessage
from gpucost.notify.sending import apprise_service
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.sender import ChannelTransports
from tests.notify.sending_worlds import channel, outgoing
from tests.support.hostile_messages import NASTY, everywhere
from tests.support.http import Reply, ScriptedServer, scripted_server


@pytest.fixture
def service() -> Iterator[ScriptedServer]:
    with scripted_server(Reply(body={})) as server:
        yield server


def json_url(server: ScriptedServer, **values: bool) -> NotificationChannel:
    return channel(ChannelService.APPRISE, f"json://127.0.0.1:{server.server_port}/hunter2", **values)


def deliver(to: NotificationChannel) -> str:
    return ChannelTransports().deliver(
        to, outgoing(message=NotificationMessage("GPUs idle", "8 GPUs <!channel>"))
    )


@pytest.mark.fault(63)
def test_nobody_is_called_but_whom_the_settings_name(service: ScriptedServer) -> None:
    hostile = " ".join(("@everyone <@U1> <!channel> <users/all> [CQ:at,qq=all] @**all**", *NASTY))
    message = replace(everywhere(hostile), mentions=True)
    to = replace(json_url(service), mention="@oncall")
    assert ChannelTransports().deliver(to, outgoing(message=message)) == ""
    said = json.loads(service.asked[0].body)["message"]
    assert not re.search(r"[@＠](?!\u200b)|<\S|\[\w+:", said.replace("@oncall", "", 1))


def test_a_message_arrives(service: ScriptedServer) -> None:
    assert deliver(json_url(service)) == ""
    (asked,) = service.asked
    assert "8 GPUs" in asked.body.decode()


@pytest.mark.fault(62)
def test_a_service_that_fails_is_tried_again(service: ScriptedServer) -> None:
    service.replies = [Reply(status=500)]
    with pytest.raises(Retry, match="json:// service did not take the message") as again:
        deliver(json_url(service))
    assert "hunter2" not in str(again.value)


@pytest.mark.fault(62)
def test_a_service_that_hangs_is_left_in_time(service: ScriptedServer) -> None:
    service.replies = [Reply(delay_s=3.0)]
    with pytest.raises(Retry, match=r"not done within 0\.5 s"):
        apprise_service.deliver(json_url(service), outgoing().post, total_s=0.5)


@pytest.mark.fault(55)
def test_loopback_is_refused_before_a_connection(service: ScriptedServer) -> None:
    to = channel(
        ChannelService.APPRISE, f"json://localhost:{service.server_port}/hunter2", allow_private=False
    )
    with pytest.raises(Refused, match="allow_private is not set") as refused:
        deliver(to)
    assert service.asked == []
    assert "hunter2" not in str(refused.value)


@pytest.mark.fault(55)
def test_redirects_lead_nowhere(service: ScriptedServer) -> None:
    service.replies = [Reply(status=307, headers={"Location": "http://169.254.169.254/latest/"})]
    with pytest.raises((Retry, Refused)):
        deliver(json_url(service))
    assert len(service.asked) == 1


@pytest.mark.fault(55)
def test_a_redirect_that_the_url_asks_for_is_not_followed(service: ScriptedServer) -> None:
    service.replies = [Reply(status=307, headers={"Location": f"http://127.0.0.1:{service.server_port}/b"})]
    base = f"json://127.0.0.1:{service.server_port}/hunter2"
    with pytest.raises(Refused, match="follows redirects, which is not allowed"):
        deliver(channel(ChannelService.APPRISE, f"{base}?redirect=yes"))
    assert service.asked == []
    with pytest.raises(Retry):  # written so that apprise alone reads it
        deliver(channel(ChannelService.APPRISE, f"{base}?a=b;redirect=yes"))
    assert len(service.asked) == 1


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    "url",
    [
        "workflow://127.0.0.1:{port}/workflow/sig/?template={file}",
        "workflow://127.0.0.1:{port}/workflow/sig/?template=file://{file}",
        "workflow://127.0.0.1:{port}/workflow/sig/?template={name}",
    ],
)
def test_no_file_is_read_for_a_message(
    service: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    file = tmp_path / "secret"
    file.write_text('{"text": "file-secret", "type": "service_account"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="reads a file, which is not allowed") as refused:
        deliver(
            channel(ChannelService.APPRISE, url.format(port=service.server_port, file=file, name=file.name))
        )
    assert service.asked == []
    assert str(file) not in str(refused.value)


@pytest.mark.fault(55)
def test_passwords_of_netrc_are_sent_to_nobody(
    service: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login somebody password hunter2secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert deliver(json_url(service)) == ""
    assert "authorization" not in {name.lower() for name in service.asked[0].headers}


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "no address in the network"),
        ("dbus://", "no address in the network"),
        (" syslog://", "no address in the network"),
        ("\tDBUS://", "no address in the network"),
        ("nonsense://hunter2", "apprise makes nothing of the nonsense:// URL"),
        ("json://169.254.169.254/hunter2", "never allowed"),
    ],
)
def test_what_is_no_address_is_refused(url: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        deliver(channel(ChannelService.APPRISE, url))
    assert "hunter2" not in str(refused.value)


def test_http_needs_a_word_in_the_settings(service: ScriptedServer) -> None:
    with pytest.raises(Refused, match="allow_http is not set"):
        deliver(json_url(service, allow_http=False))
    spaced = f" json://127.0.0.1:{service.server_port}/hunter2"
    with pytest.raises(Refused, match="allow_http is not set"):
        deliver(channel(ChannelService.APPRISE, spaced, allow_http=False))
    assert service.asked == []


def test_without_the_extra_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match=r"pip install 'gpucost\[chat\]'"):
        deliver(channel(ChannelService.APPRISE, "json://chat.example.com"))


def test_a_process_that_dies_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nexit 1\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(Retry, match="ended without an answer"):
        deliver(channel(ChannelService.APPRISE, "json://chat.example.com"))
