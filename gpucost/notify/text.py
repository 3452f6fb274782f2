r"""The one place where text is escaped and cut, per service.

A message's texts may hold anything that fits into a name. Text that passes here mentions no one, links
nowhere, has no markup, and hides nothing: control characters, right-to-left marks and zero-width characters
are written as ``\u202e``, and an address in a text loses its link (``https[:]//``). A bare
``example.com/x`` does not: resources and images have such names. A cut text ends in a mark.

Lengths are UTF-16 units, which is what JavaScript services count; never less than characters.

``fitted`` writes a message's parts in order until a service's limit, and mentions how many were left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlsplit

from gpucost.domain.text import counted
from gpucost.notify.message import MessageLink, NotificationMessage
from gpucost.reports.base import display

CUT = "… (cut)"
EMPTY = display.MISSING

# How much of each text of a message is written, in units after escaping. Slack's are the smallest.
TITLE, SUMMARY, TEXT, ITEM = 140, 600, 2000, 500
NAME, VALUE, LINK, FOOTER = 80, 400, 75, 300
URL = 1000
MOST_LINKS = 5

_BREAK = "\u200b"  # zero-width space: the text on its two sides is not one word
_LINES = re.compile(r"\r\n?|\n")
_BREAKS = re.compile(r"[\r\n\t\v\f\x85\u2028\u2029]+")
_MANY_LINES = re.compile(r"\n{3,}")

_ADDRESS = r"(?P<scheme>:(?=//))|(?P<www>(?<!\w)(?i:www)\.)"
_EDGE = r"(?<![^\W_])_|_(?![^\W_])"  # inside a word it formats nothing, and names hold it
_EMOJI = r"(?P<emoji>:(?=[\w+'-]{0,60}[a-z+][\w+'-]{0,60}:))"
_ENTITY = r"(?P<entity>&(?=#?\w+;))"
# @all and its fullwidth twin, <@U1>, <!channel>, <users/all>, <at …>, [CQ:at,qq=all].
_CALL = r"[@＠]|<(?=\S)|\[(?=\w+:)"
_START = r"(?P<start>^[ ]*(?:[#>=+-]|\d+(?=[.)])))"


def length(text: str) -> int:
    """UTF-16 units of ``text``."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def shown(text: str) -> str:
    """``text`` on one line, nothing in it unseen."""
    return _visible(_BREAKS.sub(" ", text).strip())


def shown_lines(text: str, tab: str = "    ") -> str:
    """``text`` with its line breaks, nothing else in it unseen."""
    lines = _LINES.split(text)
    return "\n".join(tab.join(_visible(part) for part in line.split("\t")).rstrip() for line in lines).strip(
        "\n"
    )


def _visible(text: str) -> str:
    return text if text.isprintable() else display.visible(text, len(text))


def _first(text: str, units: int) -> str:
    """The start of ``text`` in at most ``units``."""
    return text.encode("utf-16-le")[: 2 * units].decode("utf-16-le", "ignore")


@dataclass(frozen=True, slots=True)
class TextMarkup:
    """How one service takes text. Each match of ``special`` is written as ``replace`` says, all else as it
    stands; a cut never falls into a match."""

    special: re.Pattern[str]
    replace: Callable[[re.Match[str]], str]

    def line(self, text: str, limit: int) -> str:
        """``text`` on one line, of at most ``limit`` units."""
        return self._written(shown(text[: limit + 1]), limit, len(text) > limit + 1, CUT)

    def lines(self, text: str, limit: int) -> str:
        """``text`` with its line breaks, of at most ``limit`` units."""
        kept = _MANY_LINES.sub("\n\n", shown_lines(text[: limit + 1]))
        return self._written(kept, limit, len(text) > limit + 1, CUT)

    def code(self, text: str, limit: int, whole: str = "") -> str:
        """``text`` to be copied, of at most ``limit`` units. A cut is made at a line where it can, and
        ``whole`` says where all of it is."""
        mark = f"\n… (cut; all of it: {self.line(whole, LINK)})" if whole else f"\n{CUT}"
        kept = shown_lines(text[: limit + 1], tab="\t")
        return self._written(kept, limit, len(text) > limit + 1, mark, at_line=True)

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """What ``text`` is written as, piece by piece, and whether a piece may be cut."""
        at = 0
        for match in self.special.finditer(text):
            if at < match.start():
                yield text[at : match.start()], True
            yield self.replace(match), False
            at = match.end()
        if at < len(text):
            yield text[at:], True

    def _written(self, text: str, limit: int, more: bool, mark: str, at_line: bool = False) -> str:
        pieces = list(self._pieces(text))
        whole = "".join(piece for piece, _ in pieces)
        if not more and length(whole) <= limit:
            return whole
        kept, room = "", limit - length(mark)
        for piece, divisible in pieces:
            if length(piece) > room:
                kept += _first(piece, room) if divisible else ""
                break
            kept += piece
            room -= length(piece)
        if at_line and "\n" in kept:
            kept = kept.rpartition("\n")[0]
        return kept.rstrip() + mark


def _unlinked(match: re.Match[str]) -> str | None:
    if match["scheme"]:
        return "[:]"
    return f"{match[0][:3]}[.]" if match["www"] else None


def _entity(match: re.Match[str]) -> str:
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}[match[0]]


# Slack has no escape but for & < >, so characters that format are replaced by ones that look alike.
_LOOK_ALIKES = {"*": "∗", "~": "∼", "`": "ˋ", "_": "＿", ":": "∶", "@": f"@{_BREAK}"}


def _slack(match: re.Match[str]) -> str:
    return _unlinked(match) or _LOOK_ALIKES.get(match[0]) or _entity(match)


def _slack_code(match: re.Match[str]) -> str:
    return f"`{_BREAK}" if match[0] == "`" else _entity(match)


def _markdown(match: re.Match[str]) -> str:
    """A backslash, or an entity for what could be markup or an entity."""
    if match["scheme"]:
        return r"\[:\]"
    if match["www"]:
        return rf"{match[0][:3]}\[.\]"
    if match["entity"] or match[0] in "<>":
        return _entity(match)
    if match[0] in "{$@":
        return f"{match[0]}{_BREAK}"
    if match["start"]:
        *spaces, last = re.findall(r"\d+|\S|[ ]", match[0])
        return "".join(spaces) + (f"{last}\\" if last.isdigit() else _marker(last))
    return f"\\{match[0]}"


def _marker(char: str) -> str:
    return "&gt;" if char == ">" else f"\\{char}"


def _mattermost(match: re.Match[str]) -> str:
    if match[0] == "$":  # formulas
        return _entity(match)
    return f"{match[0]}{_BREAK}" if match["emoji"] else _markdown(match)


def _mattermost_code(match: re.Match[str]) -> str:
    return f"{match[0]}{_BREAK}"


def _uncalled(match: re.Match[str]) -> str:
    return "‹" if match[0] == "<" else f"{match[0]}{_BREAK}"


PLAIN = TextMarkup(re.compile(_ADDRESS), lambda match: _unlinked(match) or match[0])
"""For plain readers, subjects and mail; HTML is escaped by its template on top."""
SLACK_PLAIN = TextMarkup(
    re.compile(rf"{_ADDRESS}|(?<!\w)@(?=\w)|[&<>]"),
    lambda match: _unlinked(match) or (f"@{_BREAK}" if match[0] == "@" else _entity(match)),
)
"""For Slack's ``plain_text`` and the fallback text, in which nothing formats."""
SLACK = TextMarkup(re.compile(rf"{_ADDRESS}|{_EMOJI}|(?<!\w)@(?=\w)|[&<>*~`]|{_EDGE}", re.I), _slack)
"""For Slack's ``mrkdwn``."""
SLACK_CODE = TextMarkup(re.compile(r"[&<>]|`(?=`)"), _slack_code)
TEAMS = TextMarkup(
    re.compile(rf"{_ADDRESS}|{_START}|{_ENTITY}|[<>*~`\[\]\\]|\{{(?=\{{)|\$(?=\{{)|{_EDGE}", re.M), _markdown
)
"""For TextBlocks and facts of adaptive cards: a subset of markdown, ``{{DATE(…)}}``, templates' ``${…}``."""
VERBATIM = TextMarkup(re.compile(r"(?!)"), lambda match: match[0])
"""For text that is shown as it stands: code of an adaptive card, of a mail, of a plain reader."""
MATTERMOST = TextMarkup(
    re.compile(rf"{_ADDRESS}|{_START}|{_EMOJI}|{_ENTITY}|[<>*~`|#@$\[\]\\]|{_EDGE}", re.M | re.I), _mattermost
)
# Mattermost reads Slack's <!channel> and <url|text> even in code.
MATTERMOST_CODE = TextMarkup(re.compile(r"<(?=[!@#]|\w+:)"), _mattermost_code)


CHAT = TextMarkup(
    re.compile(rf"{_ADDRESS}|{_CALL}", re.I), lambda match: _unlinked(match) or _uncalled(match)
)
"""For text in a chat of unknown kind: mentions of all known kinds are broken up."""
CHAT_CODE = TextMarkup(re.compile(_CALL), _uncalled)


def fence(code: str) -> str:
    """Backticks that end no earlier than ``code`` does."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    return "`" * max(3, longest + 1)


def address(link: MessageLink) -> str | None:
    """The address of ``link`` with whatever could end it quoted; None for what is no plain http or https
    address, names a user, or is longer than URL."""
    try:
        parts = urlsplit(link.url)
        host, _ = parts.hostname, parts.port
        quoted = quote(link.url, safe=":/?#@!$&+,;=%~-._")
    except ValueError:  # no host, no port, a lone surrogate
        return None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or len(quoted) > URL:
        return None
    hidden = not all(char.isprintable() and not char.isspace() for char in link.url)
    return None if hidden or quote(parts.netloc, safe=":-._") != parts.netloc else quoted


def linked(links: Iterable[MessageLink]) -> tuple[tuple[tuple[str, str], ...], int]:
    """The (text, address) of the links that may be written, at most MOST_LINKS, and how many were left out.
    The texts are not escaped yet."""
    every = tuple(links)
    good = [(link.text.strip() or EMPTY, found) for link in every if (found := address(link)) is not None]
    return tuple(good[:MOST_LINKS]), len(every) - len(good[:MOST_LINKS])


Part = TypeVar("Part")


def fitted(
    head: Sequence[Part],
    body: Sequence[Part],
    tail: Sequence[Part],
    fits: Callable[[Sequence[Part]], bool],
    left_out: Callable[[str], Part],
    limit: str,
) -> list[Part]:
    """``head``, as much of ``body`` as fits from its start, and ``tail``, which always fit together.

    Where parts are left out, ``left_out`` makes a part of the sentence that says so; ``limit`` is
    the service's limit in words.
    """
    whole = [*head, *body, *tail]
    if fits(whole):
        return whole

    def cut(kept: int) -> list[Part]:
        parts = counted(len(body) - kept, "more part")
        return [*head, *body[:kept], left_out(f"{parts} of this message left out here: {limit}."), *tail]

    fewest, most = 0, len(body) - 1
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if fits(cut(middle)) else (fewest, middle - 1)
    return cut(fewest)


def packed(lines: Iterable[str], limit: int, between: str = "\n") -> Iterator[str]:
    """``lines``, none longer than ``limit``, joined to texts of at most ``limit`` units."""
    gathered = ""
    for line in lines:
        joined = f"{gathered}{between}{line}" if gathered else line
        if length(joined) > limit:
            yield gathered
            joined = line
        gathered = joined
    if gathered:
        yield gathered


def links_left_out(count: int) -> str:
    """The sentence about links that were left out; empty for none."""
    return f"{counted(count, 'more link')} left out here." if count else ""


def where_whole(message: NotificationMessage) -> str:
    """Where the uncut text can be read: the text of the message's first link, or nothing."""
    links, _ = linked(message.links)
    return links[0][0] if links else ""
