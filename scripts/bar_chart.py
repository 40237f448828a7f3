"""Bar charts as SVG text, readable on light and dark pages; no library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABELS, _BAR, _GAP, _HEAD = 860, 250, 16, 5, 26
_ROOM = _WIDTH - _LABELS - 150
_OWN, _OTHER, _INK = "#4051b5", "#9aa3ad", "#7a808a"


@dataclass(frozen=True)
class Bar:
    """One system: its median and, as a line over the bar, its quartiles."""

    label: str
    value: float
    low: float
    high: float
    text: str
    own: bool
    """Whether it is calve."""


@dataclass(frozen=True)
class Group:
    """Bars with a scale of their own."""

    title: str
    bars: Sequence[Bar]


def bar_chart(groups: Sequence[Group]) -> str:
    """The whole file."""
    parts: list[str] = []
    y = 0
    for group in groups:
        y += _HEAD
        parts.append(_text(0, y - 8, group.title, weight="bold"))
        scale = _ROOM / max(bar.high for bar in group.bars)
        for bar in group.bars:
            parts += _bar(bar, y, scale)
            y += _BAR + _GAP
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    color, middle = _OWN if bar.own else _OTHER, y + _BAR // 2
    end = _LABELS + bar.high * scale
    found = [
        _text(_LABELS - 8, y + 12, bar.label, anchor="end"),
        f'<rect x="{_LABELS}" y="{y}" width="{max(1.0, bar.value * scale):.1f}" height="{_BAR}" fill="{color}"/>',
        _text(end + 8, y + 12, bar.text),
    ]
    if bar.high > bar.low:
        low, high = _LABELS + bar.low * scale, end
        line = f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {y + 4}v8M{high:.1f} {y + 4}v8"'
        found.append(f'{line} stroke="{_INK}" stroke-width="1.5" fill="none"/>')
    return found


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{_INK}"'
    return f"<text {where}>{escape(text)}</text>"
