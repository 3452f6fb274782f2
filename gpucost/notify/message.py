"""The neutral message: its content, independent of the markup of any service; and its JSON for the outbox.

Every text is plain and may hold anything a user could put into a name: renderers escape it and cut it to what
their service takes. Line breaks are kept in ``MessageSection.text`` and ``MessageSection.code`` only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from gpucost.domain.errors import GpuCostError


class MessageTone(StrEnum):
    """The colour of a message."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class MessageFact:
    """One name with its value, such as ``Costs`` and ``USD 98.40 a day``."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class MessageLink:
    """Where to read on. ``url`` is http or https and comes from the settings, with values quoted; a renderer
    leaves out any other."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar of a chart: its label, its parts in the order of ``MessageChart.series``, and its value in
    words. An unknown part is None, and drawn as a gap."""

    label: str
    parts: tuple[int | None, ...]
    shown: str = ""


@dataclass(frozen=True, slots=True)
class MessageChart:
    """Stacked bars. ``series`` name the parts of every bar; ``colours`` are their keys, one for each: names
    of waste buckets, of capacity buckets, or ``accent``, ``before``. ``unit`` is that of the parts in words.

    ``upright`` draws columns (days side by side), else bars one below the other.
    """

    title: str
    unit: str
    series: tuple[str, ...]
    colours: tuple[str, ...]
    bars: tuple[ChartBar, ...]
    upright: bool = False


@dataclass(frozen=True, slots=True)
class MessageSection:
    """A part of a message. ``code`` is to be copied as it stands (a patch, a command)."""

    title: str = ""
    text: str = ""
    facts: tuple[MessageFact, ...] = ()
    items: tuple[str, ...] = ()
    code: str = ""
    chart: MessageChart | None = None
    links: tuple[MessageLink, ...] = ()


@dataclass(frozen=True, slots=True)
class NotificationMessage:
    """One message. ``summary`` is the one sentence a lock screen shows; ``footer`` says where it comes from.

    ``mentions`` asks for the mention that the channel's settings name (who is on call); a message itself
    cannot name a person.
    """

    title: str
    summary: str
    tone: MessageTone = MessageTone.INFO
    facts: tuple[MessageFact, ...] = ()
    sections: tuple[MessageSection, ...] = ()
    links: tuple[MessageLink, ...] = ()
    footer: str = ""
    mentions: bool = False


MESSAGE_VERSION = 1
_MESSAGE = TypeAdapter(NotificationMessage)


class UnreadableMessage(GpuCostError):
    """The text was not written by this version of ``message_to_json``."""


def message_to_json(message: NotificationMessage) -> str:
    """Compact text, the same for equal messages. Characters that databases refuse are replaced by ``?``."""
    text = _compact({"version": MESSAGE_VERSION, "message": asdict(message)})
    return text.encode(errors="replace").decode()


def message_from_json(text: str) -> NotificationMessage:
    """The message that ``message_to_json`` wrote. Raises UnreadableMessage for anything else: another
    version, a field too many or too few, a value of another type."""
    try:
        found = json.loads(text)
        version, written = found["version"], found["message"]
        if version != MESSAGE_VERSION:
            raise UnreadableMessage(f"version {version!r} of a message; this gpucost reads {MESSAGE_VERSION}")
        message = _MESSAGE.validate_python(written)
    except (ValidationError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableMessage(f"no message: {type(error).__name__}") from None
    # Pydantic accepts unknown fields and converts types; so the result is compared with what was read.
    if message_to_json(message) != _compact(found):
        raise UnreadableMessage("no message as it is written here: fields or types differ")
    return message


def _compact(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
