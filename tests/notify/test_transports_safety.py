"""Where nothing is sent, whatever the settings, DNS or a service say."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from gpucost.notify.alertmanager import parse
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.compose.alert import of_group
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.sending.address import METADATA, trouble_with
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.http import ChannelHttpClient
from gpucost.notify.sending.sender import ChannelTransports
from tests.kube.pki import Pki, make_pki
from tests.notify.sending_worlds import NOW_MS, channel, outgoing, slack_webhook
from tests.support.chat_server import ChatServer, Trouble, chat_server

pytestmark = pytest.mark.fault(55)

NEVER = [
    *map(str, sorted(METADATA, key=str)),
    "169.254.169.254",
    "169.254.170.2",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "::ffff:0:100.100.100.200",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:2:a9:fea9:fe00:0",
    "2001:0:7f00:1:0:0:5601:5601",
    "2a00:1450::5efe:a9fe:a9fe",
    "2a00:1450::200:5efe:6464:64c8",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "not an address",
]
PRIVATE = ["127.0.0.1", "127.8.8.8", "::1", "10.0.0.1", "172.16.9.9", "192.168.1.1", "fd12::1", "100.64.0.1"]
PRIVATE += ["::ffff:127.0.0.1", "64:ff9b::7f00:1", "240.0.0.1", "198.18.0.1", "192.0.0.8", "192.88.99.1"]
PRIVATE += [
    "64:ff9b:1::7f00:1",
    "64:ff9b:1::5db8:d822",
    "::127.0.0.1",
    "::93.184.216.34",
    "::ffff:0:127.0.0.1",
]
PRIVATE += ["::ffff:0:93.184.216.34", "2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:127.0.0.1"]
PRIVATE += ["fec0::1", "fc00::1", "2001:db8::1", "3fff::1", "5f00::1", "2002:7f00:1::1", "2002:5db8:d822::1"]

CHATS = (ChannelService.SLACK, ChannelService.MATTERMOST, ChannelService.TEAMS)


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.mark.parametrize("address", NEVER)
def test_never(address: str) -> None:
    assert trouble_with(address, allow_private=True)
    assert trouble_with(address, allow_private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_a_word_in_the_settings(address: str) -> None:
    assert "allow_private" in trouble_with(address, allow_private=False)
    assert trouble_with(address, allow_private=True) == ""


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"]
)
def test_public_addresses_may_be_connected_to(address: str) -> None:
    assert trouble_with(address, allow_private=False) == ""


@pytest.mark.parametrize("service", CHATS)
def test_what_an_alert_names_is_neither_asked_nor_linked(chat: ChatServer, service: ChannelService) -> None:
    """Every address of the payload is one of a server that would tell, written in some way."""
    with chat_server() as inside:
        here = f"127.0.0.1:{inside.server_port}"
        ways = [f"http://{here}/latest", f"//{here}/x", f"gopher://{here}/x", f"file://{here}/etc/passwd"]
        ways += [
            f"http://{host}:{inside.server_port}/x" for host in ("2130706433", "0x7f.1", "[::ffff:7f00:1]")
        ]
        ways += [f"https://gpucost.example.com@{here}/", f"javascript:fetch('http://{here}')"]
        texts = dict(zip((*"abcdefg", "summary", "description"), ways, strict=True))
        alert = {"status": "firing", "labels": {"alertname": "A", **texts}, "generatorURL": ways[0]}
        alerts = [
            alert | {"annotations": {**texts, "runbook_url": way, "dashboard_url": way}, "fingerprint": way}
            for way in ways
        ]
        common = {"commonLabels": texts, "commonAnnotations": {**texts, "image": ways[0]}}
        payload = {
            "version": "4",
            "groupKey": "{}",
            "status": "firing",
            "alerts": alerts,
            "receiver": ways[0],
        }
        group = parse(payload | common | {"externalURL": ways[0], "groupLabels": texts})
        links = MessageLinks("https://gpucost.example.com", "https://grafana.example.com")
        message = of_group(group, links, received_ms=NOW_MS).message
        urls = (chat.slack_webhook, chat.mattermost_webhook, chat.teams_workflow)
        to = channel(service, dict(zip(CHATS, urls, strict=True))[service])
        ChannelTransports().deliver(to, outgoing(message=message))
        assert message.links == ()
        said = json.dumps(chat.asked[0].payload)
        assert "latest" in said
        assert f"://{here}" not in said.replace("\\", "")
        assert inside.asked == []
    assert len(chat.asked) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
def test_loopback_by_any_name_is_refused_before_a_connection(chat: ChatServer, host: str) -> None:
    to = channel(
        ChannelService.SLACK, f"http://{host}:{chat.server_port}/services/hunter2", allow_private=False
    )
    with pytest.raises(Refused, match="allow_private is not set") as refused:
        ChannelTransports().deliver(to, outgoing())
    assert "hunter2" not in str(refused.value)
    assert chat.asked == []


def test_the_metadata_service_is_refused_even_where_private_addresses_are_allowed() -> None:
    to = channel(ChannelService.TEAMS, "http://169.254.169.254/latest/meta-data/iam/security-credentials/")
    with pytest.raises(Refused, match="never allowed"):
        ChannelTransports().deliver(to, outgoing())


def test_a_name_is_resolved_once_and_that_address_is_connected_to(chat: ChatServer) -> None:
    asked = []

    def rebinding(host: str, _: int) -> list[str]:
        """First an address that is allowed, then one that is not."""
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    to = channel(ChannelService.SLACK, f"http://chat.test:{chat.server_port}/services/x")
    ChannelTransports(resolve=rebinding).deliver(to, outgoing())
    assert asked == ["chat.test"]
    assert chat.asked[0].headers["host"] == f"chat.test:{chat.server_port}"


def test_one_bad_address_among_good_ones_is_enough(chat: ChatServer) -> None:
    to = channel(ChannelService.SLACK, f"http://chat.test:{chat.server_port}/services/x")
    with pytest.raises(Refused, match=r"chat\.test: 169.254.169.254"):
        ChannelTransports(resolve=lambda *_: ["127.0.0.1", "169.254.169.254"]).deliver(to, outgoing())
    assert chat.asked == []


def test_redirects_are_not_followed(chat: ChatServer) -> None:
    chat.always = Trouble(307, b"", {"Location": f"{chat.url}/services/elsewhere"})
    with pytest.raises(Refused, match="redirect"):
        ChannelTransports().deliver(slack_webhook(chat), outgoing())
    assert len(chat.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://chat.example.com/hunter2",
        "gopher://127.0.0.1/hunter2",
        "chat.example.com/hunter2",
        "https:///hunter2",
        "https://user:hunter2@chat.example.com/",
        "https://chat.example.com:0/hunter2",
        "https://chat.example.com:99999/hunter2",
        "https://chat.example.com/hunter2 x",
        "https://chat.example.com/hunter2\r\nX: y",
        "https://[::1/hunter2",
    ],
)
def test_other_urls_are_refused_without_their_secret(url: str) -> None:
    with pytest.raises(Refused) as refused:
        ChannelTransports().deliver(channel(ChannelService.TEAMS, url), outgoing())
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(channel(ChannelService.TEAMS, url))


def test_http_needs_a_word_in_the_settings(chat: ChatServer) -> None:
    with pytest.raises(Refused, match="http with allow_http"):
        ChannelTransports().deliver(slack_webhook(chat, allow_http=False), outgoing())
    assert chat.asked == []


def test_names_that_do_not_resolve() -> None:
    def nobody(*_: object) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(Retry, match=r"chat\.test: the name does not resolve"):
        ChannelHttpClient(resolve=nobody).send("POST", "https://chat.test/hunter2", {})
    with pytest.raises(Refused, match="no name of a host"):
        ChannelHttpClient().send("POST", f"https://{'x' * 70}.test/hunter2", {})


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def https(chat: ChatServer, host: str) -> NotificationChannel:
    return NotificationChannel(
        "ops",
        ChannelService.SLACK,
        SecretStr(f"https://{host}:{chat.server_port}/services/x"),
        allow_private=True,
    )


def test_certificates_are_verified_by_name_although_an_address_is_connected_to(pki: Pki) -> None:
    def here(*_: object) -> list[str]:
        return ["127.0.0.1"]

    with chat_server(context=pki.tls()) as chat:
        ChannelTransports(trusting(pki.ca), here).deliver(https(chat, "api.test"), outgoing())
        assert len(chat.shown) == 1
        with pytest.raises(Retry, match=r"no TLS .*certificate"):
            ChannelTransports(trusting(pki.ca), here).deliver(https(chat, "other.test"), outgoing())
        with pytest.raises(Retry, match=r"no TLS .*certificate"):
            ChannelTransports(None, here).deliver(https(chat, "api.test"), outgoing())
        assert len(chat.shown) == 1
