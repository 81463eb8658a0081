"""How the four weights formats, and the two conventions for groups, name the extents of a weights tensor.

A format string is the order of three axis groups. In convolutions O counts the window side (dst) and I the image side
(src); in transposed ones O counts the image side (dst) and I the window side (src). With groups, one of the two is
divided by their number:

    convention     convolution             transposed
    "library"      O = OC,   I = IC/G      I = IC,   O = OC/G       window side in full, as the oneDNN library has it
    "documented"   the same                I = IC/G, O = OC         image side in full, as the pages have it

With one group both are the same; with more, a channel count of an activation tells them apart.
"""

from __future__ import annotations

from convgrad.errors import ShapeError

Ints = tuple[int, ...]

LETTERS = {  # (of the window side, of the image side)
    "convolution": ("O", "I"),
    "transposed": ("I", "O"),
}


def letter_axes(weights_format: str, rank: int) -> dict[str, int]:
    """The axis of O, the axis of I, and the first of the kernel axes X, of weights with `rank` kernel axes."""
    axes, at = {}, 0
    for letter in weights_format:
        axes[letter] = at
        at += rank if letter == "X" else 1
    return axes


def split_weights_shape(weights_format: str, shape: Ints) -> tuple[int, int, Ints]:
    """The extents of O, of I and of the kernel."""
    rank = len(shape) - 2
    axes = letter_axes(weights_format, rank)
    return shape[axes["O"]], shape[axes["I"]], shape[axes["X"] : axes["X"] + rank]


def _describe(op: str, name: str, weights_format: str, shape: Ints) -> str:
    """Words for a message: which extents the format gives to which letter."""
    o, i, _ = split_weights_shape(weights_format, shape)
    return f"{op}: {name} {list(shape)} in {weights_format} has O = {o}, I = {i}"


def resolve_channels(
    op: str,
    family: str,
    *,
    weights: tuple[str, str, Ints],  # name, format, shape
    groups: int,
    image: tuple[str, int] | None,  # name of the tensor on the image side, if it is given, and its channels
    window: tuple[str, int] | None,
) -> tuple[int, int, str]:
    """Channels of the image side and of the window side over all groups, and the convention of the weights."""
    name, weights_format, shape = weights
    o, i, _ = split_weights_shape(weights_format, shape)
    window_letter, image_letter = LETTERS[family]
    held_by_window, held_by_image = (o, i) if window_letter == "O" else (i, o)
    for tensor in (image, window):
        if tensor and tensor[1] % groups:
            raise ShapeError(
                f"{op}: {tensor[0]} has {tensor[1]} channels, which groups = {groups} does not divide; "
                "change groups or data_format"
            )

    def fits(image_channels: int, window_channels: int) -> bool:
        return (image is None or image[1] == image_channels) and (window is None or window[1] == window_channels)

    readings = {"library": (held_by_image * groups, held_by_window)}
    if family == "transposed" and groups > 1:
        readings["documented"] = (held_by_image, held_by_window * groups)
    for convention, (image_channels, window_channels) in readings.items():
        if fits(image_channels, window_channels):
            full, letter = (
                (window_channels, window_letter) if convention == "library" else (image_channels, image_letter)
            )
            if full % groups:
                raise ShapeError(
                    f"{_describe(op, name, weights_format, shape)}: groups = {groups} does not divide "
                    f"{letter} = {full}; check weights_format and groups"
                )
            return image_channels, window_channels, convention
    raise ShapeError(_mismatch(op, family, name, weights_format, shape, groups, image, window))


def _mismatch(op, family, name, weights_format, shape, groups, image, window) -> str:
    window_letter, image_letter = LETTERS[family]
    expected = []
    for tensor, letter, full in ((image, image_letter, False), (window, window_letter, True)):
        if tensor:
            channels, share = tensor[1], tensor[1] // groups
            count = str(channels if full else share)
            if family == "transposed" and groups > 1:
                count += f" (or {share if full else channels} as the pages write it)"
            per_group = f", that is {share} per group" if groups > 1 else ""
            expected.append(f"{tensor[0]} has {channels} channels in groups = {groups}{per_group}: {letter} = {count}")
    return (
        f"{_describe(op, name, weights_format, shape)}, but {' and '.join(expected)} is needed; "
        "check data_format, weights_format and groups"
    )
