"""Stills and animations."""

import json
import re
import sys
import xml.etree.ElementTree as ET

import pytest

from convgrad.drawing.arithmetic import Arithmetic
from convgrad.drawing.looks import DARK_HUES, HUES, INK, letters, tint
from convgrad.drawing.marks import marks
from convgrad.drawing.picture import ANIMATIONS, STILLS, DrawingError, animation, draw, gif, png, save, still
from convgrad.drawing.words import broken, sum_of
from drawing_cases import CASES, OPERATIONS, arithmetic_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_still_is_well_formed_and_stays_inside_its_frame(op, case):
    a = arithmetic_of(op, CASES[case])
    for step in {0, a.telling_step, len(a.elements) - 1}:
        root = ET.fromstring(still(a, step))
        width, height = float(root.get("width")), float(root.get("height"))
        keys = [item.get("id") for item in root.iter() if item.get("id")]
        assert len(keys) == len(set(keys))
        for box in root.iter(f"{SVG}rect"):
            x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            if box.get("id") != "x.window":
                assert 0 <= x <= x + w <= width, box.get("id")
                assert 0 <= y <= y + h <= height, box.get("id")


@pytest.mark.parametrize("op", OPERATIONS)
def test_exactly_the_factors_of_the_sum_are_lit(op):
    a = arithmetic_of(op, CASES["strided"])
    for step, element in enumerate(a.elements):
        factors = {cell for term in a.terms(element) for cell in (("x", term.x), ("w", term.tap), ("y", term.y))}
        found = {
            cell: mark
            for cell, mark in marks(a, step).items()
            if mark.look["fill"] in HUES and mark.look["stroke"] == INK
        }
        solved = (a.unknown.value, element)
        assert set(found) - {solved} == factors - {solved}
        assert marks(a, step)[solved].label == "Σ"


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("case", ["strided", "dilated and strided by a common factor"])
def test_the_steps_of_an_animation_are_the_stills(op, case):
    a = arithmetic_of(op, CASES[case])
    page = animation(a)
    data = json.loads(re.search(r"const data = (.*), wait = \d+;", page)[1])
    rest = {item.key: item for item in draw(a, None).items}
    assert len(data["steps"]) == len(data["texts"]) == len(a.elements)
    for step, changed in enumerate(data["steps"]):
        for item in draw(a, step).items:
            state = {name: str(ET_plain(value)) for name, value in rest[item.key].attributes.items()}
            text = rest[item.key].text
            for name, value in changed.get(item.key, {}).items():
                if name == "#":
                    text = value
                elif value == "":
                    del state[name]
                else:
                    state[name] = value
            assert state == {name: str(ET_plain(value)) for name, value in item.attributes.items()}
            assert text == item.text


def test_a_page_needs_nothing_from_elsewhere():
    page = animation(arithmetic_of("ConvTranspose", CASES["strided"]))
    assert re.findall(r"https?://[^\s\"']+", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@\w+@", page)


def test_letters_are_legible_on_every_hue():
    for colour in HUES:
        assert contrast(colour, letters(colour)) >= 4.5, colour
    assert set(DARK_HUES) <= set(HUES)


def test_png_and_gif(tmp_path):
    pytest.importorskip("cairosvg", exc_type=ImportError)
    image = pytest.importorskip("PIL.Image")
    a = arithmetic_of("ConvolutionBackwardData", CASES["one axis"])
    save(a, tmp_path / "a.png", step=2, kinds=STILLS)
    save(a, tmp_path / "a.gif", step=None, kinds=ANIMATIONS)
    with image.open(tmp_path / "a.png") as still_image, image.open(tmp_path / "a.gif") as moving:
        assert still_image.size[0] > 2 * 400
        assert moving.n_frames == len(a.elements)


def test_a_gif_has_the_colours_of_the_picture(tmp_path):
    pytest.importorskip("cairosvg", exc_type=ImportError)
    image = pytest.importorskip("PIL.Image")
    a = arithmetic_of("ConvolutionBackwardData", CASES["strided"])
    save(a, tmp_path / "a.gif", step=None, kinds=ANIMATIONS)
    with image.open(tmp_path / "a.gif") as moving:
        moving.seek(len(a.elements) // 2)
        counted = moving.convert("RGB").getcolors(1 << 20)
    shown = {f"#{r:02x}{g:02x}{b:02x}": count for count, (r, g, b) in counted}
    for colour in (*HUES[:4], *map(tint, HUES[:4])):
        assert shown.get(colour, 0) > 100, colour


@pytest.mark.parametrize(("make", "missing"), [(lambda a: png(still(a, 0)), "cairosvg"), (gif, "PIL")])
def test_what_is_missing_is_named(monkeypatch, make, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DrawingError, match=r"pip install 'convgrad\[draw\]'"):
        make(arithmetic_of("Convolution", CASES["one axis"]))


def test_the_ending_of_a_file_says_its_form(tmp_path):
    a: Arithmetic = arithmetic_of("Convolution", CASES["one axis"])
    with pytest.raises(DrawingError, match=r"a\.jpg: the ending says what to write, and is one of \.svg, \.png"):
        save(a, tmp_path / "a.jpg", step=0, kinds=STILLS)


def test_sums_in_words():
    a = arithmetic_of("ConvolutionBackwardData", CASES["stride beyond the kernel"])
    assert sum_of(a, 4) == "diff_src[4] = diff_dst[1]·weights[1]"
    assert sum_of(a, 5) == "diff_src[5] = 0, as no tap reaches it"
    a = arithmetic_of("Convolution", CASES["one axis"])
    assert sum_of(a, 0) == "dst[0] = src[0]·weights[1] + src[1]·weights[2]; 1 more fall on padding"
    assert broken("a = b + c + d", 9) == ["a = b + c", "      + d"]


def ET_plain(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def contrast(one, other):
    """As WCAG 2 defines it."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    a, b = sorted((light(one), light(other)))
    return (b + 0.05) / (a + 0.05)
