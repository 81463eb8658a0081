"""Random geometry for hypothesis."""

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Geometry:
    """A convolution or transposed convolution with all extents; image and window as in docs/semantics.md."""

    family: str
    batch: int
    groups: int
    window_channels: int  # of one group
    image_channels: int
    image: tuple
    window: tuple
    kernel: tuple
    attributes: dict
    documented: bool  # weights in the convention of the pages

    def activation(self, extent, channels):
        """A shape in the data format."""
        channels *= self.groups
        ncx = self.attributes["data_format"] == "NCX"
        return (self.batch, channels, *extent) if ncx else (self.batch, *extent, channels)

    @property
    def image_shape(self):
        return self.activation(self.image, self.image_channels)

    @property
    def window_shape(self):
        return self.activation(self.window, self.window_channels)

    @property
    def weights_shape(self):
        """O is the window side of a convolution and the image side of a transposed one; one of them is per group."""
        window, image = self.window_channels, self.image_channels
        if self.documented:
            image *= self.groups
        else:
            window *= self.groups
        o, i = (window, image) if self.family == "convolution" else (image, window)
        extents = {"O": (o,), "I": (i,), "X": self.kernel}
        return sum((extents[letter] for letter in self.attributes["weights_format"]), ())


@st.composite
def axes(draw, small):
    """(image, window, kernel, stride, dilation, begin, end, output padding) of one axis, consistent."""
    top = 2 if small else 4
    k, s, d = draw(st.integers(1, top)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    begin, end, y = draw(st.integers(0, top + 1)), draw(st.integers(0, top + 1)), draw(st.integers(1, top + 1))
    padding = draw(st.integers(0, s - 1))
    reach = (k - 1) * d + 1
    image = s * (y - 1) + reach - begin - end + padding
    if image < 1:
        begin = end = 0
        image = s * (y - 1) + reach + padding
    return image, y, k, s, d, begin, end, padding


@st.composite
def geometries(draw, family):
    """One to four axes, groups, every format, pads on one side, and an output padding of the transposed family."""
    rank = draw(st.integers(1, 4))
    columns = zip(*[draw(axes(small=rank > 2)) for _ in range(rank)], strict=True)
    image, window, kernel, strides, dilations, begin, end, padding = columns
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    attributes = {
        "strides": strides,
        "dilations": dilations,
        "pads_begin": begin,
        "pads_end": end,
        "groups": groups,
        "data_format": draw(st.sampled_from(["NCX", "NXC"])),
        "weights_format": draw(st.sampled_from(["OIX", "XIO", "IOX", "XOI"])),
    }
    if family == "transposed":
        attributes["output_padding"] = padding
    return Geometry(
        family=family,
        batch=draw(st.integers(1, 2)),
        groups=groups,
        window_channels=draw(st.integers(1, 3)),
        image_channels=draw(st.integers(1, 3)),
        image=image,
        window=window,
        kernel=kernel,
        attributes=attributes,
        documented=family == "transposed" and groups > 1 and draw(st.booleans()),
    )
