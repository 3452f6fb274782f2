"""The neutral message: what is said, without a word of how any service writes it.

Every text is plain and may hold anything a user could put into a name: renderers escape it and cut it to
what their service takes. Line breaks are kept in ``Section.text`` and ``Section.code`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """How it is coloured."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Fact:
    """One name with its value, such as ``Costs`` and ``USD 98.40 a day``."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Link:
    """Where to read on. ``url`` is http or https and comes from the settings, with values quoted; a renderer
    leaves out any other."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart: its label, its parts in the order of ``Chart.series``, and its value in words. A
    part that is not known is None, and drawn as a gap."""

    label: str
    parts: tuple[int | None, ...]
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked bars. ``series`` name the parts of every bar; ``colours`` are their keys, one for each: names
    of waste buckets, of capacity buckets, or ``accent``, ``before``. ``unit`` is that of the parts in words.

    ``upright`` draws columns (days side by side), else bars one below the other.
    """

    title: str
    unit: str
    series: tuple[str, ...]
    colours: tuple[str, ...]
    bars: tuple[Bar, ...]
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a message. ``code`` is to be copied as it stands (a patch, a command)."""

    title: str = ""
    text: str = ""
    facts: tuple[Fact, ...] = ()
    items: tuple[str, ...] = ()
    code: str = ""
    chart: Chart | None = None
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``summary`` is the one sentence a lock screen shows; ``footer`` says where it comes from.

    ``mentions`` asks for the mention that the channel's settings name (who is on call); a message can name
    nobody by itself.
    """

    title: str
    summary: str
    tone: Tone = Tone.INFO
    facts: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()
    links: tuple[Link, ...] = ()
    footer: str = ""
    mentions: bool = False
