"""Charts as PNG, for mail and cards, and as bars of text, for chats that take no picture.

Pillow is imported only when a PNG is drawn. The colours are those of the reports' pages.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from gpucost.notify import text
from gpucost.notify.message import ChartBar, MessageChart
from gpucost.reports.base.chart_scales import BandScale, LinearScale, highest_stack

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

UNKNOWN = "unknown"
MOST_BARS = 31
LABEL = 24

_WIDTH, _MARGIN = 640, 16
_TITLE_SIZE, _TEXT_SIZE = 16, 13
_ROW, _BAR = 30, 18
_COLUMNS = 180
_SHEET, _COLOURS = "#ffffff", 96
_ALIASES = {"accent": "held", "before": "others"}
_GLYPHS = "█▓▒░#=+-"
_GAP_GLYPH = "?"
_PLAINER = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "’": "'", "‘": "'", "“": '"', "”": '"', "€": "EUR"}
)


@cache
def palette() -> dict[str, str]:
    """Name -> ``#rrggbb``, from the light colours of the reports' style sheet."""
    style = (files("gpucost.reports") / "templates" / "month.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style.partition("}")[0]))


def colour(key: str) -> str:
    """The colour of a series: a bucket of the waste ledger, of capacity, or a name of the style sheet."""
    colours = palette()
    key = _ALIASES.get(key, key)
    return colours.get(f"w-{key}") or colours.get(key) or colours["others"]


def described(chart: MessageChart) -> str:
    """``chart`` in words, for readers who cannot see it."""
    bars = "; ".join(f"{text.shown(bar.label)}: {_value(bar, chart)}" for bar in chart.bars[:MOST_BARS])
    return f"{text.shown(chart.title)}, in {text.shown(chart.unit)}. {bars}{_more(chart)}"


def text_bars(chart: MessageChart, *, width: int = 34) -> str:
    """``chart`` as lines of at most ``width`` characters (30 at least), one bar each; a key of the series
    where there are several. Columns lie on their side. Not escaped for any service."""
    bars = chart.bars[:MOST_BARS]
    labels = [_short(bar.label, min(LABEL, width // 3)) for bar in bars]
    values = [_short(_value(bar, chart), width // 3) for bar in bars]
    first = max(map(len, labels), default=0)
    last = max(map(len, values), default=0)
    room = max(width - first - last - 2, 4)
    scale = LinearScale(_most(chart), room)
    lines = [
        f"{label:<{first}} {_glyphs(chart, bar, scale, room):<{room}} {value:>{last}}".rstrip()
        for label, bar, value in zip(labels, bars, values, strict=True)
    ]
    key = [f"{_glyph(chart, at)} {_short(name, LABEL)}" for at, name in enumerate(chart.series)]
    if _has_gap(chart) and UNKNOWN not in chart.colours:
        key.append(f"{_GAP_GLYPH} {UNKNOWN}")
    if len(key) > 1:
        lines += _wrapped(key, width)
    return "\n".join([*lines, _more(chart).strip()]).rstrip()


def png(chart: MessageChart, *, scale: int = 2) -> bytes:
    """``chart`` as a PNG of 640 x ``scale`` pixels in width. The same bytes for the same chart and version of
    Pillow. ImportError where Pillow is not installed."""
    from PIL import Image

    canvas = _Canvas(chart, scale)
    buffer = io.BytesIO()
    canvas.image.quantize(_COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


class _Canvas:
    """One chart being drawn; lengths are in CSS pixels, from the top left."""

    def __init__(self, chart: MessageChart, scale: int) -> None:
        from PIL import Image, ImageDraw

        self.chart, self.scale, self.colours = chart, scale, palette()
        self.bars = chart.bars[:MOST_BARS]
        self.plot = _COLUMNS if chart.upright else _ROW * len(self.bars)
        self.key = self._key_rows()
        self.top = _MARGIN + 34
        axis = 22 if chart.upright else 0
        more = 20 if len(chart.bars) > MOST_BARS else 0
        self.height = self.top + self.plot + axis + 22 * len(self.key) + more + _MARGIN
        self.image: Image.Image = Image.new("RGB", (_WIDTH * scale, self.height * scale), _SHEET)
        self.draw = ImageDraw.Draw(self.image)
        self._title()
        if chart.upright:
            self._upright()
        else:
            self._lying()
        self._key(self.top + self.plot + axis + 6)
        if more:
            self.write(
                _MARGIN, self.height - _MARGIN - 14, _more(chart).strip(), self.colours["muted"], _TEXT_SIZE
            )

    def _title(self) -> None:
        self.write(
            _MARGIN, _MARGIN, _fitting(self.chart.title, 480, _TITLE_SIZE), self.colours["ink"], _TITLE_SIZE
        )
        unit = _fitting(self.chart.unit, 120, _TEXT_SIZE)
        self.write(_WIDTH - _MARGIN, _MARGIN + 2, unit, self.colours["muted"], _TEXT_SIZE, anchor="ra")

    def _lying(self) -> None:
        labels = [_fitting(bar.label, 150, _TEXT_SIZE) for bar in self.bars]
        values = [_fitting(_value(bar, self.chart), 170, _TEXT_SIZE) for bar in self.bars]
        left = _MARGIN + max((_wide(label) for label in labels), default=0) + 12
        right = _WIDTH - _MARGIN - max((_wide(value) for value in values), default=0) - 12
        scale = LinearScale(_most(self.chart), right - left)
        for at, (bar, label, value) in enumerate(zip(self.bars, labels, values, strict=True)):
            y = self.top + at * _ROW + (_ROW - _BAR) // 2
            self.write(_MARGIN, y + _BAR / 2, label, self.colours["ink"], _TEXT_SIZE, anchor="lm")
            self.write(_WIDTH - _MARGIN, y + _BAR / 2, value, self.colours["ink"], _TEXT_SIZE, anchor="rm")
            self.box(left, y, right, y + _BAR, self.colours["soft"])
            for start, end, key in self._spans(bar, scale, left, right):
                self.part(start, y, end, y + _BAR, key)

    def _upright(self) -> None:
        base = self.top + self.plot
        scale = LinearScale(_most(self.chart), self.plot - 24)
        bands = BandScale(_MARGIN, _WIDTH - 2 * _MARGIN, len(self.bars))
        room = bands.width
        wide = min(room * 0.7, 56)
        every = -(-len(self.bars) // 8)
        for at, bar in enumerate(self.bars):
            middle = bands.at(at + 0.5)
            top = float(base)
            for start, end, key in self._spans(bar, scale, 0, self.plot - 24):
                top = base - end
                self.part(middle - wide / 2, top, middle + wide / 2, base - start, key)
            if len(self.bars) <= 8:
                value = _fitting(_value(bar, self.chart), room - 4, _TEXT_SIZE)
                self.write(middle, top - 4, value, self.colours["ink"], _TEXT_SIZE, anchor="mb")
            if at % every == 0:
                label = _fitting(bar.label, room * every - 6, _TEXT_SIZE)
                self.write(middle, base + 6, label, self.colours["muted"], _TEXT_SIZE, anchor="ma")
        self.box(_MARGIN, base, _WIDTH - _MARGIN, base + 1, self.colours["muted"])

    def _spans(
        self, bar: ChartBar, scale: LinearScale, start: float, end: float
    ) -> list[tuple[float, float, str | None]]:
        """(from, to, key of the colour or None for the unknown) of the parts of ``bar``. A part above zero is
        visible; a gap takes the room that is left, or a little."""
        spans: list[tuple[float, float, str | None]] = []
        at = start
        for part, key in zip(bar.parts, self.chart.colours, strict=False):
            if part is None:
                wide = max(scale.room * 0.08, 12.0)
                spans.append((at, min(at + wide, end), None))
            elif part > 0:
                wide = scale.length(part, least=2.0)
                spans.append((at, min(at + wide, end), key))
            else:
                continue
            at = min(at + wide, end)
        return spans

    def _key_entries(self) -> list[tuple[str, str | None]]:
        entries: list[tuple[str, str | None]] = [
            (_fitting(name, 160, _TEXT_SIZE), key)
            for name, key in zip(self.chart.series, self.chart.colours, strict=False)
        ]
        if _has_gap(self.chart) and UNKNOWN not in self.chart.colours:
            entries.append((UNKNOWN, None))
        return entries if len(entries) > 1 else []

    def _key_rows(self) -> list[list[tuple[float, str, str | None]]]:
        rows: list[list[tuple[float, str, str | None]]] = []
        x = _WIDTH + 1.0
        for name, key in self._key_entries():
            wide = 18 + _wide(name) + 18
            if x + wide - 18 > _WIDTH - _MARGIN:
                rows.append([])
                x = _MARGIN
            rows[-1].append((x, name, key))
            x += wide
        return rows

    def _key(self, top: float) -> None:
        for at, row in enumerate(self.key):
            for x, name, key in row:
                y = top + at * 22 + 4
                self.part(x, y, x + 11, y + 11, key)
                self.write(x + 18, y + 6, name, self.colours["muted"], _TEXT_SIZE, anchor="lm")

    def write(self, x: float, y: float, words: str, fill: str, size: int, *, anchor: str = "la") -> None:
        self.draw.text(
            (round(x * self.scale), round(y * self.scale)),
            words,
            fill,
            _font(size * self.scale),
            anchor=anchor,
        )

    def box(self, left: float, top: float, right: float, bottom: float, fill: str) -> None:
        corners = [round(at * self.scale) for at in (left, top, right, bottom)]
        if corners[2] > corners[0] and corners[3] > corners[1]:
            self.draw.rectangle((corners[0], corners[1], corners[2] - 1, corners[3] - 1), fill)

    def part(self, left: float, top: float, right: float, bottom: float, key: str | None) -> None:
        """A part in its colour; the unknown is hatched."""
        if key is not None and key != UNKNOWN:
            self.box(left, top, right, bottom, colour(key))
            return
        from PIL import Image

        x, y = round(left * self.scale), round(top * self.scale)
        size = (max(round(right * self.scale) - x, 1), max(round(bottom * self.scale) - y, 1))
        tile: Image.Image = Image.new("RGB", size, self.colours["soft"])
        _hatch(tile, self.colours["unknown"], 5 * self.scale)
        self.image.paste(tile, (x, y))


def _hatch(tile: Image, ink: str, step: int) -> None:
    from PIL import ImageDraw

    draw, (wide, high) = ImageDraw.Draw(tile), tile.size
    for x in range(-high, wide, step):
        draw.line((x, high, x + high, 0), ink, max(step // 4, 1))


@cache
def _font(size: int) -> FreeTypeFont:
    from PIL import ImageFont

    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # a scalable font is part of every wheel of Pillow
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def _drawable(words: str) -> str:
    """In the characters that the built-in font has: ASCII and a few more."""
    plainer = unicodedata.normalize("NFKD", words.translate(_PLAINER))
    kept = (char for char in plainer if not unicodedata.combining(char))
    return "".join(char if char.isascii() or char in "×·" else "?" for char in kept)


def _wide(words: str) -> float:
    return _font(_TEXT_SIZE).getlength(words)


def _fitting(words: str, room: float, size: int) -> str:
    """``words`` cut to ``room`` CSS pixels."""
    drawn = _drawable(text.shown(words[:120]))
    if _font(size).getlength(drawn) <= room:
        return drawn
    while drawn and _font(size).getlength(f"{drawn}...") > room:
        drawn = drawn[:-1]
    return f"{drawn.rstrip()}..." if drawn else ""


def _short(words: str, limit: int) -> str:
    seen = text.shown(words[: limit + 1])
    return seen if len(seen) <= limit else f"{seen[: limit - 1]}…"


def _value(bar: ChartBar, chart: MessageChart) -> str:
    """A bar in words: as it was given, else its sum, or that it is unknown."""
    if bar.shown:
        return text.shown(bar.shown[: text.VALUE])
    if None in bar.parts:
        return UNKNOWN
    whole = sum(part for part in bar.parts if part is not None)
    return f"{whole:,} {text.shown(chart.unit[: text.NAME])}".strip()


def _most(chart: MessageChart) -> int:
    """The longest bar, at least 1."""
    return max(1, highest_stack(bar.parts for bar in chart.bars[:MOST_BARS]))


def _has_gap(chart: MessageChart) -> bool:
    return any(part is None for bar in chart.bars[:MOST_BARS] for part in bar.parts)


def _more(chart: MessageChart) -> str:
    left = len(chart.bars) - MOST_BARS
    return f" … and {left:,} more, not drawn." if left > 0 else ""


def _glyph(chart: MessageChart, at: int) -> str:
    unknown = at < len(chart.colours) and chart.colours[at] == UNKNOWN
    return _GAP_GLYPH if unknown else _GLYPHS[at % len(_GLYPHS)]


def _glyphs(chart: MessageChart, bar: ChartBar, scale: LinearScale, room: int) -> str:
    """The parts of ``bar`` side by side, ending where the running sum does, so that no rounding adds up."""
    drawn, so_far = "", 0
    for at, part in enumerate(bar.parts):
        if part is None:
            drawn += _GAP_GLYPH
        elif part > 0:
            so_far += part
            end = max(round(scale.length(so_far)), len(drawn) + 1)
            drawn += _glyph(chart, at) * (end - len(drawn))
    return drawn[:room]


def _wrapped(entries: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for entry in entries:
        joined = f"{lines[-1]}  {entry}" if lines[-1] else entry
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(entry)
    return lines
