"""The one table of colours: apart from each other for every kind of sight, visible on white and on dark."""

from itertools import combinations, pairwise

import pytest

from memwall.ops.registry import OP_CLASSES
from memwall.perfmodel.roofline import LINK, WALLS
from memwall.report.figures.colors import (
    CLASS_COLORS,
    DARK,
    MEMORY_COLORS,
    NEUTRAL,
    SERIES_COLORS,
    SIGN_COLORS,
    WALL_COLORS,
    css,
    hexed,
    luminance,
    text_on,
    variables,
)
from memwall.simulate.memory import KINDS

WHITE = {
    "classes": [*CLASS_COLORS.values()], "walls": [*WALL_COLORS.values()], "memory": [*MEMORY_COLORS.values()],
    "series and signs": [*SERIES_COLORS, *SIGN_COLORS.values()],
}  # fmt: skip
#: the ground that marks stand on, and the groups of colours there
PAGES = {"light": ("#ffffff", WHITE), "dark": ("#1d2126", {name: [*map(DARK.get, own)] for name, own in WHITE.items()})}
#: linear RGB of normal sight and as a dichromat sees it (Machado, Oliveira, Fernandes 2009, severity 1)
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
#: linear sRGB -> XYZ over the white point D65
XYZ = ((0.4339496, 0.3762098, 0.1898406), (0.2126729, 0.7151522, 0.0721750), (0.0177580, 0.1094770, 0.8727660))


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(color, sight="normal"):
    """CIELAB of ``#rrggbb``."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    seen = [min(1.0, max(0.0, part)) for part in times(SIGHT[sight], linear)]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in times(XYZ, seen))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one, other, sight="normal"):
    """CIE 1976 colour difference."""
    return sum((a - b) ** 2 for a, b in zip(lab(one, sight), lab(other, sight), strict=True)) ** 0.5


def test_the_distance_of_white_and_black_is_a_hundred():
    assert distance("#ffffff", "#000000") == pytest.approx(100, abs=0.01)


def contrast(one, other):
    """WCAG 2: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(params=PAGES)
def page(request):
    return PAGES[request.param]


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("group", WHITE)
def test_colours_of_a_group_are_apart_for_every_kind_of_sight(page, group, sight):
    least = min(((distance(a, b, sight), a, b) for a, b in combinations(page[1][group], 2)))
    assert least[0] >= 13.5, least


def test_no_colour_means_two_things(page):
    pairs = [(distance(a, b), a, b) for one, other in combinations(page[1].values(), 2) for a in one for b in other]
    assert min(pairs)[0] >= 10, min(pairs)


def test_a_wall_and_a_class_of_one_page_are_further_apart(page):
    pairs = [(distance(a, b), a, b) for a in page[1]["walls"] for b in page[1]["classes"]]
    assert min(pairs)[0] >= 30, min(pairs)


@pytest.mark.parametrize(("group", "least"), [("walls", 8), ("memory", 3.5)])
def test_what_stacks_differs_in_grey(page, group, least):
    light = sorted(lab(color)[0] for color in page[1][group])
    assert min(b - a for a, b in pairwise(light)) >= least


def test_marks_stand_out_from_the_page_and_letters_from_marks(page):
    """WCAG 2: graphical objects 3 to 1, text 4.5 to 1."""
    ground, groups = page
    for color in (color for group in groups.values() for color in group):
        assert contrast(color, ground) >= 3, color
        assert contrast(color, text_on(color)) >= 4.5, color


@pytest.mark.parametrize(("name", "least"), [("ink", 4.5), ("dim", 4.5), ("pale", 3), ("line", 1.2)])
def test_neutral_colours_stand_out_as_they_need(name, least):
    """Text is ink or dim, pale is frames, dashed roofs and marks without a colour; line, gridlines, steps back."""
    assert contrast(NEUTRAL[name], NEUTRAL["card"]) >= least and contrast(DARK[name], DARK["card"]) >= least


def test_the_page_sets_every_colour_and_its_letters():
    """A mark's variable falls back to its shade on white; the style sheet of a dark page sets another."""
    set_dark = dict(pair.split(":") for pair in variables(dark=True).split(";"))
    for color in (*DARK, "on ink", f"on {CLASS_COLORS['attention']}"):
        name, fallback = css(color)[len("var(--") : -1].split(",")
        assert fallback == hexed(color) and set_dark[f"--{name}"].startswith("#")
    assert css("#123456") == "#123456"


def test_the_table_is_whole():
    assert set(OP_CLASSES) <= set(CLASS_COLORS)
    assert {*WALLS, LINK} <= set(WALL_COLORS)
    assert set(KINDS) == set(MEMORY_COLORS)
