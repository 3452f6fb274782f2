"""Mail, against a loopback mail server."""

from __future__ import annotations

import ssl

import pytest
from pydantic import SecretStr

from gpucost.notify.notices import DeliveryAct
from gpucost.notify.sending.delivery import Refused, Retry
from gpucost.notify.sending.sender import ChannelTransports
from gpucost.notify.sending.smtp import SmtpMailer
from tests.kube.pki import Pki, make_pki
from tests.notify.sending_worlds import NOW_MS, mailbox, outgoing
from tests.support.smtp_server import PASSWORD, USER, smtp_server


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def transports(pki: Pki | None = None) -> ChannelTransports:
    context = None if pki is None else ssl.create_default_context(cafile=str(pki.ca))
    return ChannelTransports(context, now_ns=lambda: NOW_MS * 1_000_000)


def test_a_mail_is_whole_and_a_conversation_one_thread() -> None:
    with smtp_server() as server:
        to = mailbox(server.port)
        reference = transports().deliver(to, outgoing())
        assert transports().deliver(to, outgoing(DeliveryAct.RESOLVE, reference, id=2)) == reference
        assert transports().deliver(to, outgoing(DeliveryAct.UPDATE, reference, id=3)) == reference
        first, end = server.received
    assert (first.sender, first.recipients) == ("gpu@example.com", ("a@example.com", "b@example.com"))
    assert first.mail["Message-ID"] == reference
    assert reference.endswith("@example.com>")
    assert first.mail["Date"] == "Tue, 01 Dec 2026 00:00:00 -0000"
    assert "GPUs idle" in first.mail["Subject"]
    assert (end.mail["In-Reply-To"], end.mail["References"]) == (reference, reference)
    assert end.mail["Message-ID"] != reference
    body = first.mail.get_body(("plain",))
    assert body is not None
    assert "98.40" in body.get_content()


def test_a_mail_that_comes_twice_has_one_id() -> None:
    with smtp_server() as server:
        for _ in range(2):
            transports().deliver(mailbox(server.port), outgoing())
        first, again = server.received
    assert first.mail["Message-ID"] == again.mail["Message-ID"]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_encrypted_and_with_a_password(pki: Pki, security: str) -> None:
    login = {"security": security, "username": USER, "password": SecretStr(PASSWORD)}
    with smtp_server(pki.tls(), implicit_tls=security == "tls") as server:
        transports(pki).deliver(mailbox(server.port, **login), outgoing())
        assert [(each.secured, each.user) for each in server.received] == [(True, USER)]
        with pytest.raises(Retry, match="no TLS"):
            transports().deliver(mailbox(server.port, **login), outgoing())
        wrong = login | {"password": SecretStr("hunter3")}
        with pytest.raises(Refused, match="answered 535") as refused:
            transports(pki).deliver(mailbox(server.port, **wrong), outgoing())
        assert "hunter3" not in str(refused.value)
        assert len(server.received) == 1


def test_a_server_without_starttls_is_given_nothing() -> None:
    with smtp_server() as server:
        with pytest.raises(Refused, match="STARTTLS"):
            transports().deliver(mailbox(server.port, security="starttls"), outgoing())
        assert "MAIL" not in server.commands


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    ("command", "answer", "outcome", "said"),
    [
        ("RCPT", "550 no such user hunter2", Refused, r"refuses every recipient \(550\)"),
        ("RCPT", "450 greylisted", Retry, r"refuses every recipient \(450\)"),
        ("MAIL", "451 later", Retry, "answered 451"),
        ("MAIL", "553 not your address", Refused, "answered 553"),
        ("DATA", "554 no", Refused, "answered 554"),
        ("DATA", "421 closing", Retry, "answered 421"),
    ],
)
def test_what_the_server_says(command: str, answer: str, outcome: type[Exception], said: str) -> None:
    with smtp_server() as server:
        server.refuse = {command: answer}
        with pytest.raises(outcome, match=said) as raised:
            transports().deliver(mailbox(server.port), outgoing())
    assert "hunter2" not in str(raised.value)
    assert "example.com" not in str(raised.value)


@pytest.mark.fault(62)
def test_nobody_listens_and_somebody_says_nothing() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = mailbox(silent.getsockname()[1])
        with pytest.raises(Retry, match="not done in time"):
            SmtpMailer(allow_private=True, total_s=2.0).deliver(to, outgoing().post, "", "token", NOW_MS)
    with pytest.raises(Retry, match="no connection"):
        transports().deliver(to, outgoing())


@pytest.mark.fault(55)
def test_private_addresses_need_a_word_in_the_settings() -> None:
    with pytest.raises(Refused, match="allow_private is not set"):
        SmtpMailer().deliver(mailbox(25), outgoing().post, "", "token", NOW_MS)
