"""E-mail: text, and HTML that reads the same without pictures, scripts or styles of the reader's program.
Charts are pictures of the mail itself; nothing is fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from gpucost.notify import pictures, text
from gpucost.notify.message import (
    MessageChart,
    MessageFact,
    MessageLink,
    MessageSection,
    MessageTone,
    NotificationMessage,
)
from gpucost.notify.render import plain
from gpucost.notify.text import fitted, links_left_out, where_whole

MOST_UNITS = 60_000
MOST_CHARTS = 6
_LIMIT = f"a mail has {MOST_UNITS:,} characters"
_MOST_OF_CODE = 20_000
_TONES = {
    MessageTone.CRITICAL: "unavailable",
    MessageTone.WARNING: "unallocated",
    MessageTone.GOOD: "s1",
    MessageTone.INFO: "held",
}
_DRAWN = 640


@dataclass(frozen=True, slots=True)
class MailPicture:
    """A picture of the mail, referenced in its HTML by ``cid``. ``words`` describe it."""

    cid: str
    words: str
    png: bytes
    width: int = _DRAWN


@dataclass(frozen=True, slots=True)
class MailContent:
    """The content of a mail: a subject on one line, text, HTML, and the pictures that the HTML shows."""

    subject: str
    text: str
    html: str
    pictures: tuple[MailPicture, ...]

    def mime(self, sender: str, recipients: Sequence[str]) -> EmailMessage:
        """The message without date and id, which the sender adds. The same bytes for the same mail."""
        mime = EmailMessage()
        mime["Subject"] = self.subject
        mime["From"] = sender
        mime["To"] = ", ".join(recipients)
        mime.set_content(self.text)
        mime.add_alternative(self.html, subtype="html")
        for picture in self.pictures:
            html = mime.get_payload()[1]  # type: ignore[index]  # the list of parts, by the lines above
            assert isinstance(html, EmailMessage)
            name = f"{picture.cid.partition('@')[0]}.png"
            html.add_related(
                picture.png, "image", "png", cid=f"<{picture.cid}>", filename=name, disposition="inline"
            )
        seed = hashlib.sha256(self.html.encode()).hexdigest()[:24]
        for at, part in enumerate(mime.walk()):
            if part.is_multipart():
                part.set_boundary(f"=_{seed}_{at}")
        return mime


@dataclass(frozen=True, slots=True)
class _Block:
    """A piece of the page: one of its fields is set. ``heading`` stands over it."""

    heading: str = ""
    rule: bool = False
    lines: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    items: tuple[str, ...] = ()
    code: str = ""
    picture: MailPicture | None = None
    links: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def units(self) -> int:
        """Its length, without its picture and its links."""
        words = [self.heading, *self.lines, *self.items, self.code, self.note]
        return sum(map(text.length, [*words, *(word for fact in self.facts for word in fact)]))


def render(message: NotificationMessage, *, mention: str = "") -> MailContent:
    """The mail. ``mention`` opens it in words, where the message asks for it."""
    written = text.PLAIN
    title = written.line(message.title, text.TITLE) or text.EMPTY
    called = text.PLAIN.line(mention, text.NAME) if message.mentions else ""
    blocks = fitted(
        [],
        _body(message),
        [_Block(links=_links(message.links), note=links_left_out(text.linked(message.links)[1]))],
        lambda parts: sum(part.units for part in parts) <= MOST_UNITS,
        lambda sentence: _Block(note=sentence),
        _LIMIT,
    )
    html = _template().render(
        title=title,
        told=f"{called} {written.line(message.summary, text.SUMMARY)}".strip(),
        blocks=blocks,
        footer=written.line(message.footer, text.FOOTER),
        colours=pictures.palette(),
        tone=pictures.palette()[_TONES[message.tone]],
    )
    seen = tuple(block.picture for block in blocks if block.picture is not None)
    return MailContent(title, plain.render(message, mention=called), html, seen)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("gpucost.notify", "render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("email.html.j2")


def _body(message: NotificationMessage) -> list[_Block]:
    blocks = [_Block(facts=_facts(message.facts))] if message.facts else []
    whole, charts = where_whole(message), 0
    for section in message.sections:
        drawn = section.chart is not None and charts < MOST_CHARTS
        charts += drawn
        blocks += _of_section(section, whole, f"chart-{charts}@gpucost" if drawn else "")
    return blocks


def _of_section(section: MessageSection, whole: str, cid: str) -> list[_Block]:
    """``cid`` names the section's picture; its chart is drawn in text where there is none."""
    heading = text.PLAIN.line(section.title, text.TITLE)
    blocks = [_Block(heading=heading, rule=True)]
    if section.text:
        lines = text.PLAIN.lines(section.text, text.TEXT)
        blocks.append(_Block(lines=tuple(lines.split("\n"))))
    if section.facts:
        blocks.append(_Block(facts=_facts(section.facts)))
    if section.items:
        blocks.append(_Block(items=tuple(text.PLAIN.line(item, text.ITEM) for item in section.items)))
    if section.code:
        blocks.append(_Block(code=text.VERBATIM.code(section.code, _MOST_OF_CODE, whole)))
    if section.chart is not None:
        blocks.append(_chart(section.chart, cid))
    note = links_left_out(text.linked(section.links)[1])
    if section.links:
        blocks.append(_Block(links=_links(section.links), note=note))
    return blocks


def _chart(chart: MessageChart, cid: str) -> _Block:
    words = text.PLAIN.line(pictures.described(chart), text.TEXT)
    try:
        picture = MailPicture(cid, words, pictures.png(chart)) if cid else None
    except ImportError:
        picture = None
    if picture is not None:
        return _Block(picture=picture)
    name = text.PLAIN.line(chart.title, text.TITLE)
    return _Block(heading=name, code=pictures.text_bars(chart, width=plain.WIDTH))


def _facts(facts: Sequence[MessageFact]) -> tuple[tuple[str, str], ...]:
    written = text.PLAIN
    return tuple(
        (
            written.line(fact.name, text.NAME) or text.EMPTY,
            written.line(fact.value, text.VALUE) or text.EMPTY,
        )
        for fact in facts
    )


def _links(links: Sequence[MessageLink]) -> tuple[tuple[str, str], ...]:
    return tuple((text.PLAIN.line(words, text.LINK), url) for words, url in text.linked(links)[0])
