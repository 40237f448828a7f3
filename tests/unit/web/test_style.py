"""The colours of the page: every text can be read, in light and in dark."""

import re
from pathlib import Path

import pytest

from calve.web import app

CSS = (Path(app.__file__).parent / "static/page.css").read_text()


def theme(marker: str) -> dict[str, str]:
    block = CSS[CSS.index(marker) :]
    return dict(
        re.findall(
            r"--([\w-]+): (#[0-9a-f]{6})(?=;)",
            block[: block.index("--sans") if marker == ":root {" else block.index("}")],
        )
    )


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("marker", [":root {", ':root[data-theme="dark"] {'])
def test_texts_have_enough_contrast(marker: str) -> None:
    colours = theme(marker)
    for ground in ("ground", "panel"):
        for text in ("text", "soft", "faint", "accent", "good", "warn", "bad", "rest"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for state in ("good", "warn", "bad", "rest"):
        assert contrast(colours[state], colours[f"{state}-ground"]) >= 4.5, state


def test_both_ways_to_dark_have_the_same_colours() -> None:
    assert theme(':root:not([data-theme="light"]) {') == theme(':root[data-theme="dark"] {')
