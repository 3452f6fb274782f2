"""What fits: a message's parts are written in order until a service's limit, and what is left out is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gpucost.domain.words import counted
from gpucost.notify import text
from gpucost.notify.message import Message

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
        if text.length(joined) > limit:
            yield gathered
            joined = line
        gathered = joined
    if gathered:
        yield gathered


def links_left_out(count: int) -> str:
    """The sentence about links that were left out; empty for none."""
    return f"{counted(count, 'more link')} left out here." if count else ""


def where_whole(message: Message) -> str:
    """Where the whole of what is cut can be read: the text of the message's first link, or nothing."""
    links, _ = text.linked(message.links)
    return links[0][0] if links else ""
