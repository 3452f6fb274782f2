"""The mail: read back by Python's own mail and HTML parsers."""

from __future__ import annotations

import io
import re
from email import message_from_bytes, policy
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from jinja2 import Environment
from PIL import Image

from gpucost.notify import text
from gpucost.notify.message import NotificationMessage
from gpucost.notify.render import email
from tests.support.hostile_messages import WORST, addresses, crowded, messages, unseen
from tests.support.sample_messages import DIGEST, IDLE, PATCH, SAMPLES

_TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "body",
    "table",
    "tr",
    "td",
    "th",
    "h1",
    "h2",
    "p",
    "ul",
    "li",
    "pre",
}
_TAGS |= {"img", "a"}
_ATTRIBUTES = {"lang", "charset", "name", "content", "style", "role", "scope", "src", "alt", "href"}
_ATTRIBUTES |= {"width", "align", "valign", "cellpadding", "cellspacing", "border"}


class Page(HTMLParser):
    """The page's addresses, pictures and words; fails at a tag or attribute that is not ours."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.images: list[str] = []
        self.words = ""
        self.prose = ""
        """The words without those of code."""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        for name, value in attrs:
            assert name in _ATTRIBUTES
            assert "url(" not in (value or "") or name == "alt"
            if name == "href":
                self.links.append(value or "")
            if name == "src":
                self.images.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.lasttag != "pre":
            self.prose += data


def harmless(message: NotificationMessage) -> None:
    mail = email.render(message, mention="on call")
    assert mail == email.render(message, mention="on call")
    page = Page(mail.html)
    assert set(page.links) <= addresses(message)
    assert not re.search(r"://|www\.", page.prose)
    assert page.images == [f"cid:{picture.cid}" for picture in mail.pictures]
    assert not unseen(mail.html)
    sent = mail.mime("gpucost@example.com", ["team@example.com"]).as_bytes()
    read = message_from_bytes(sent, policy=policy.default)
    assert read["To"] == "team@example.com"
    assert read["Bcc"] is None
    assert str(read["Subject"]).split() == mail.subject.split()
    assert "\n" not in mail.subject
    assert len(sent) < 500_000


@pytest.mark.fault(63)
@given(message=messages)
@settings(max_examples=8)
def test_hostile_words_are_words(message: NotificationMessage) -> None:
    harmless(message)


@pytest.mark.fault(63)
@pytest.mark.parametrize("message", WORST, ids=range(len(WORST)))
def test_the_worst_words_in_every_place(message: NotificationMessage) -> None:
    harmless(message)


def worst_are_harmless() -> None:
    for message in WORST:
        harmless(message)


@pytest.mark.parametrize("escaper", ["PLAIN"])
def test_the_worst_words_tell_when_an_escaper_is_off(escaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, escaper, text.VERBATIM)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_worst_words_tell_when_html_is_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    email._template.cache_clear()
    monkeypatch.setattr(email, "Environment", lambda **given: Environment(**given | {"autoescape": False}))
    try:
        with pytest.raises(AssertionError):
            worst_are_harmless()
    finally:
        email._template.cache_clear()


def test_the_worst_words_tell_when_something_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_visible", str)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_parts_of_a_digest() -> None:
    mime = email.render(DIGEST).mime("gpucost <gpucost@example.com>", ["a@example.com", "b@example.com"])
    read = message_from_bytes(mime.as_bytes(), policy=policy.default)
    kinds = [part.get_content_type() for part in read.walk()]
    assert kinds == [
        *("multipart/alternative", "text/plain", "multipart/related", "text/html"),
        *("image/png", "image/png"),
    ]
    pictures = [part for part in read.walk() if part.get_content_type() == "image/png"]
    html = read.get_body(("related", "html"))
    assert html is not None
    for picture in pictures:
        assert picture["Content-Disposition"].startswith("inline")
        assert f'src="cid:{picture["Content-ID"].strip("<>")}"' in next(html.iter_parts()).get_content()
        assert Image.open(io.BytesIO(picture.get_content())).width == 1280
    assert read["Subject"] == DIGEST.title
    assert read["To"] == "a@example.com, b@example.com"


def test_the_same_mail_is_the_same_bytes() -> None:
    made = {email.render(DIGEST).mime("a@example.com", ["b@example.com"]).as_bytes() for _ in range(2)}
    assert len(made) == 1


def test_a_finding_says_amount_job_team_and_action() -> None:
    mail = email.render(IDLE, mention="on call")
    page = Page(mail.html)
    for words in (
        "on call Since 06:10 UTC",
        "USD 98.40 so far",
        "vision / train-resnet",
        PATCH.rstrip(),
        IDLE.footer,
    ):
        assert words in page.words
    assert page.links == [link.url for link in IDLE.links]
    assert mail.subject == IDLE.title
    assert PATCH.splitlines()[0] in mail.text


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_a_page_of_ours(name: str) -> None:
    mail = email.render(SAMPLES[name])
    assert Page(mail.html).words.count(SAMPLES[name].title) == 2


def test_what_does_not_fit_is_left_out_and_said() -> None:
    mail = email.render(crowded())
    assert "left out here: a mail has 60,000 characters." in mail.html
    assert "4 more links left out here." in mail.html
    assert len(mail.html) < 200_000
