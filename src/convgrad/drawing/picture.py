"""Stills and animations of the arithmetic of one operation."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convgrad.drawing.arithmetic import Arithmetic
from convgrad.drawing.looks import CARD, EDGE, FAINT, GREY, HUES, INK, PLAIN, mixed, tint
from convgrad.drawing.page import PAGE
from convgrad.drawing.plane import plane
from convgrad.drawing.row import row
from convgrad.drawing.scene import Scene, changes, svg
from convgrad.drawing.words import sum_of
from convgrad.errors import ConvError

MILLISECONDS = 700  # of one step
STILLS, ANIMATIONS = (".svg", ".png"), (".html", ".gif")


class DrawingError(ConvError):
    """A picture that cannot be made here."""


def draw(a: Arithmetic, step: int | None) -> Scene:
    """The scene of one step, or of the tensors at rest."""
    return row(a, step) if a.resolved.rank == 1 else plane(a, step)


def frames(a: Arithmetic) -> Iterator[Scene]:
    """One scene per element of the result."""
    return (draw(a, step) for step in range(len(a.elements)))


def still(a: Arithmetic, step: int) -> str:
    """SVG of one step."""
    return svg(draw(a, step))


def animation(a: Arithmetic) -> str:
    """A page of HTML, complete in itself, that steps through all elements of the result."""
    rest = draw(a, None)
    steps = list(changes(rest, list(frames(a))))
    texts = [sum_of(a, step) for step in range(len(a.elements))]
    data = json.dumps({"steps": steps, "texts": texts, "solved": a.unknown.value}, separators=(",", ":"))
    values = {
        "title": a.resolved.op,
        "picture": svg(rest),
        "data": data.replace("</", "<\\/"),
        "wait": str(MILLISECONDS),
    }
    page = PAGE
    for name, value in values.items():
        page = page.replace(f"@{name}@", value)
    return page


def png(picture: str, *, scale: float = 2.0) -> bytes:
    """Pixels of an SVG, by cairosvg."""
    try:
        import cairosvg
    except ImportError as error:
        raise DrawingError(
            "PNG and GIF need cairosvg: pip install 'convgrad[draw]'; SVG and HTML need nothing"
        ) from error
    except OSError as error:  # it is there, and the library under it is not
        raise DrawingError("cairosvg finds no cairo library: install libcairo; SVG and HTML need nothing") from error
    return cairosvg.svg2png(bytestring=picture.encode(), scale=scale, background_color="#ffffff")


def gif(a: Arithmetic, *, scale: float = 1.0) -> bytes:
    """All steps as an endless GIF."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DrawingError("a GIF needs pillow: pip install 'convgrad[draw]'; HTML needs nothing") from error
    palette = _palette()
    images = [
        Image.open(io.BytesIO(png(svg(scene), scale=scale))).convert("RGB").quantize(palette=palette, dither=0)
        for scene in frames(a)
    ]
    held = io.BytesIO()
    images[0].save(held, "GIF", save_all=True, append_images=images[1:], duration=MILLISECONDS, loop=0)
    return held.getvalue()


def _palette() -> Any:
    """Every colour that a picture is made of, and the shades between them and their edges; a GIF has 256."""
    from PIL import Image

    exact = [CARD, EDGE, FAINT, GREY, INK, PLAIN, "#ffffff", "#000000", *HUES, *map(tint, HUES)]
    shades = [mixed(colour, INK, part / 4) for colour in (*HUES, *map(tint, HUES)) for part in (1, 2, 3)]
    greys = [mixed("#ffffff", "#000000", part / 24) for part in range(1, 24)]
    colours = list(dict.fromkeys((*exact, *shades, *greys)))
    colours += colours[-1:] * (256 - len(colours))
    image = Image.new("P", (1, 1))
    image.putpalette(b"".join(bytes.fromhex(colour[1:]) for colour in colours))
    return image


def save(a: Arithmetic, path: Path, *, step: int | None, kinds: Sequence[str]) -> None:
    """A file in the form that its ending names, one of `kinds`; a still of `step`, or without it an animation."""
    kind = path.suffix.lower()
    if kind not in kinds:
        raise DrawingError(f"{path}: the ending says what to write, and is one of {', '.join(kinds)}")
    match kind:
        case ".svg":
            path.write_text(still(a, step or 0), encoding="utf-8")
        case ".png":
            path.write_bytes(png(still(a, step or 0)))
        case ".html":
            path.write_text(animation(a), encoding="utf-8")
        case _:
            path.write_bytes(gif(a))
