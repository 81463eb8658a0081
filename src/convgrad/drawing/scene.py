"""What a picture is made of, and its SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from convgrad.drawing.looks import CARD, EDGE, INK
from convgrad.values import frozen

LETTER = 0.56  # width of a letter in units of its height, a little more than most text has


@frozen
class Item:
    """One element of SVG. Frames of an animation hold the same keys in the same order."""

    key: str
    tag: str
    attributes: dict[str, Any]
    text: str = ""

    def __str__(self) -> str:
        attributes = " ".join(f"{name}={quoteattr(_plain(value))}" for name, value in self.attributes.items())
        end = f">{escape(self.text)}</{self.tag}>" if self.tag == "text" else "/>"
        return f'<{self.tag} id="{self.key}" {attributes}{end}'


@dataclass(slots=True)
class Scene:
    """A picture: its size, what it shows in one sentence, and its items from back to front."""

    width: float = 0
    height: float = 0
    title: str = ""
    items: list[Item] = field(default_factory=list)

    def box(self, key: str, x: float, y: float, w: float, h: float, **look: Any) -> None:
        """A rectangle."""
        self.items.append(Item(key, "rect", {"x": x, "y": y, "width": w, "height": h} | _dashed(look)))

    def line(self, key: str, x1: float, y1: float, x2: float, y2: float, **look: Any) -> None:
        """A straight line."""
        self.items.append(Item(key, "line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2} | _dashed(look)))

    def text(
        self, key: str, x: float, y: float, text: str, size: float = 13, *, anchor: str = "start", **look: Any
    ) -> None:
        """Letters; y is their base line."""
        look = {"fill": INK} | _dashed(look)
        self.items.append(Item(key, "text", {"x": x, "y": y, "font-size": size, "text-anchor": anchor} | look, text))
        right = x + len(text) * size * LETTER if anchor == "start" else x
        self.width = max(self.width, right + 20)


def svg(scene: Scene) -> str:
    """The whole picture as a document of its own."""
    w, h = _plain(scene.width), _plain(scene.height)
    ground = f'<rect x="0.5" y="0.5" width="{_plain(scene.width - 1)}" height="{_plain(scene.height - 1)}" rx="8"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
            f'font-family="sans-serif">',
            f"<title>{escape(scene.title)}</title>",
            f'{ground} fill="{CARD}" stroke="{EDGE}"/>',
            *map(str, scene.items),
            "</svg>\n",
        ]
    )


def changes(rest: Scene, frames: Sequence[Scene]) -> Iterator[dict[str, dict[str, str]]]:
    """Per frame what differs from the resting picture: attributes by key, and the text under '#'."""
    before = {item.key: _state(item) for item in rest.items}
    for frame in frames:
        assert [item.key for item in frame.items] == list(before), "frames are made of the same items"
        found = {}
        for item in frame.items:
            was = before[item.key]
            changed = {name: value for name, value in _state(item).items() if was.get(name) != value}
            gone = {name: "" for name in was if name not in item.attributes and name != "#"}
            if changed or gone:
                found[item.key] = gone | changed
        yield found


def _state(item: Item) -> dict[str, str]:
    state = {name: _plain(value) for name, value in item.attributes.items()}
    return state | {"#": item.text} if item.tag == "text" else state


def _dashed(look: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in look.items()}


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
