"""A preview in a terminal: a line for each team, then what makes the difference, then the proof."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rich.console import Console, RenderableType
from rich.text import Text

from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.reports.base import display
from gpucost.reports.charges.chargeback_preview import ChargebackPreview, PreviewAmount, PreviewTeam
from gpucost.reports.render.terminal_parts import filled, print_parts, shown_name

WORDS = {
    ChargeKind.USED: "used",
    ChargeKind.BORROWED: "borrowed: held beyond the quota",
    ChargeKind.RESERVED_IDLE: "quota that stood idle",
    ChargeKind.QUOTA_LENT: "quota that others held",
    ChargeKind.LENT_CREDIT: "credit for lent quota",
    ChargeKind.NOBODYS_IDLE: "idle capacity of nobody",
    ChargeKind.UNAVAILABLE: "unavailable time",
    ChargeKind.UNKNOWN: "time not observed",
    ChargeKind.OVERHEAD: "overhead",
    ChargeKind.DISCOUNT: "discount",
    ChargeKind.MARK_UP: "mark-up",
    ChargeKind.FLOOR: "up to the floor",
    ChargeKind.CAP: "above the cap",
}
"""What a kind of charge is called before people."""
_KEPT = "kept by the platform"


def print_preview(found: ChargebackPreview, console: Console) -> None:
    """``found`` in tables; amounts in its currency, rounded to cents. The proof is in nano-units."""
    several = len(found.policies) > 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    heads = list(letters[: len(found.policies)])
    legend = "\n".join(
        f"{letter}  {display.visible(each.name)} ({display.visible(each.file)})"
        for letter, each in zip(heads, found.policies, strict=True)
    )
    title = f"What teams would pay, {display.month_name(found.month)}, {found.currency}"
    change = [f"{heads[-1]} − {heads[0]}", "change"] if several else []
    teams = [
        [*_name(each), *_money(each.totals), *_change(each, several)] for each in (*found.teams, found.kept)
    ]
    total = [Text("capacity"), Text(), *(Text(display.money(each.capacity.nano)) for each in found.policies)]
    teams.append([*total, *(Text() for _ in change)])
    table = filled(title, ["team", "cost centre", *heads, *change], teams, {0, 1}, console.width)
    why = filled(
        "Why",
        ["team", "line", *(f"{letter} GPU-h" for letter in heads), *heads, *change[:1]],
        list(_lines(found, several)),
        {0, 1},
        console.width,
    )
    parts: list[RenderableType] = [Text(legend), table, why]
    if several:
        moved = f"{display.money(found.moved_nano)} {found.currency}"
        parts.append(Text(f"{moved} change hands between {heads[0]} and {heads[-1]}."))
    if found.unpriced_board_ms:
        hours = display.hours_or_less(found.unpriced_board_ms)
        parts.append(Text(f"{hours} GPU-hours have no price, and are in no amount.", "yellow"))
    parts.append(Text("\n".join(_proof(found, heads))))
    print_parts(parts, console)


def _name(found: PreviewTeam) -> tuple[Text, Text]:
    if found.team == PLATFORM:
        return Text(_KEPT), Text()
    return shown_name(found.team), Text(display.MISSING) if found.cost_centre is None else shown_name(
        found.cost_centre
    )


def _money(amounts: tuple[PreviewAmount, ...]) -> list[Text]:
    return [Text(display.money(each.nano).replace("-", "−")) for each in amounts]


def _change(found: PreviewTeam, several: bool) -> list[Text]:
    if not several:
        return []
    first = found.totals[0].nano
    relative = (
        display.signed_percent(Fraction(found.difference_nano, first)) if first > 0 else display.MISSING
    )
    return [Text(display.signed_money(found.difference_nano)), Text(relative)]


def _lines(found: ChargebackPreview, several: bool) -> Iterator[list[Text]]:
    for team in (*found.teams, found.kept):
        for n, line in enumerate(team.lines):
            name = _name(team)[0] if n == 0 else Text()
            hours = [Text(display.hours(each.board_ms).replace("-", "−")) for each in line.amounts]
            more = [Text(display.signed_money(line.difference_nano))] if several else []
            yield [name, Text(WORDS[ChargeKind(line.kind)]), *hours, *_money(line.amounts), *more]


def _proof(found: ChargebackPreview, heads: list[str]) -> Iterator[str]:
    for letter, each in zip(heads, found.policies, strict=True):
        charged, kept, whole = (display.money(part.nano) for part in (each.charged, each.kept, each.capacity))
        proof = f"difference {each.difference.nano} nano"
        yield f"{letter}: charged {charged} + kept {kept} = capacity {whole} {found.currency}: {proof}"
