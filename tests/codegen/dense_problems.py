"""Dense problems in the usual layouts, and a table of those at the edges of what problems there are."""

from codegen.random_problems import strides_in
from convgrad.problem.conv import ConvProblem, Unknown

X, W, Y = Unknown.X, Unknown.W, Unknown.Y


def problem_of(
    unknown, image, windows, taps, *, channels=(5, 7), groups=1, batch=1, stride=1, dilation=1, low=0, layout="NCX",
    weights="", **others,
):  # fmt: skip
    """A dense problem in one of the usual layouts, of weights if another one; scalars hold for every axis."""
    rank = len(image)
    c, k = channels
    shapes = {
        "x": (batch, groups, c, *image),
        "w": (groups, k, c, *taps),
        "y": (batch, groups, k, *windows),
    }
    spatial = tuple(range(3, 3 + rank))
    of_data = {"NCX": (0, 1, 2, *spatial), "NXC": (0, *spatial, 1, 2)}[layout]
    of_weights = {"NCX": (0, 1, 2, *spatial), "NXC": (*spatial, 2, 0, 1)}[weights or layout]
    orders = {"x": of_data, "w": of_weights, "y": of_data}

    def each(value):
        return value if isinstance(value, tuple) else (value,) * rank

    return ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=c, y_channels=k, x_extent=image, y_extent=windows,
        taps=taps, stride=each(stride), dilation=each(dilation), pad_low=each(low),
        **{f"{name}_strides": strides_in(orders[name], shapes[name]) for name in shapes}, **others,
    )  # fmt: skip


def on_axes(unknown, axes, **others):
    """The same, of axes as a tuple: extents of x and y, taps, strides, dilations and low pads."""
    *extents, stride, dilation, low = axes
    return problem_of(unknown, *extents, stride=stride, dilation=dilation, low=low, **others)


# --- named problems


SAME = {"low": 1}  # pads of a 3-tap kernel that keep the extent
EDGES = {
    "no input channels of a result side": problem_of(Y, (9,), (9,), (3,), channels=(0, 4), low=1),
    "no window channels of an image side": problem_of(X, (9,), (9,), (3,), channels=(4, 0), low=1),
    "no input channels, with bias": problem_of(Y, (9,), (9,), (3,), channels=(0, 20), low=1, bias=True),
    "no images of weights": problem_of(W, (9,), (9,), (3,), batch=0, low=1),
    "no windows of weights": problem_of(W, (2,), (0,), (3,)),
    "no windows of an image": problem_of(X, (2,), (0,), (3,), bias=True),
    "no taps": problem_of(Y, (5,), (5,), (0,), bias=True),
    "groups whose windows fill an axis": problem_of(
        X, (18, 9), (1, 9), (18, 1), channels=(1, 2), groups=10, batch=2, layout="NXC"
    ),
    "weights of groups whose windows fill an axis": problem_of(
        W, (18, 9), (1, 9), (18, 1), channels=(1, 2), groups=10, batch=2, layout="NXC"
    ),
    "all extents one": problem_of(Y, (1, 1, 1), (1, 1, 1), (1, 1, 1), channels=(1, 1)),
    "all extents one, weights": problem_of(W, (1, 1, 1), (1, 1, 1), (1, 1, 1), channels=(1, 1)),
    "windows that meet no image": problem_of(Y, (2,), (9,), (2,), stride=3, low=4, bias=True),
    "an image that meets no window": problem_of(X, (40,), (2,), (2,), stride=2, low=0, bias=True),
    "weights that meet nothing": problem_of(W, (2,), (3,), (2,), stride=9, low=7),
    "weights that meet nothing, and sums of x": problem_of(
        W, (2,), (3,), (2,), stride=9, low=7, bias_gradient="x", accumulate=True
    ),
    "no windows of weights, and sums of x": problem_of(W, (2, 5), (0, 3), (3, 3), bias_gradient="x", bias_stride=-2),
    "no windows of weights, and sums of y": problem_of(W, (2, 5), (0, 3), (3, 3), bias_gradient="y"),
    "no images of weights, and sums": problem_of(W, (9,), (9,), (3,), batch=0, low=1, bias_gradient="x"),
    "no images of weights whose blocks are whole, and sums": problem_of(
        W,
        (44,),
        (37,),
        (6,),
        channels=(2, 3),
        batch=0,
        dilation=2,
        low=2,
        dtype="f16",
        out_dtype="f16",
        bias_gradient="x",
    ),
    "gaps between windows are summed, too": problem_of(W, (23, 9), (3, 2), (2, 2), stride=(9, 5), bias_gradient="x"),
    "elements before and behind the windows are summed, too": problem_of(
        W, (30, 8), (4, 3), (3, 2), stride=(2, 1), low=(-5, -2), bias_gradient="x"
    ),
    "pads beyond the kernel": problem_of(X, (7, 6), (12, 13), (3, 2), low=(4, 4)),
    "stride beyond the kernel": problem_of(X, (23,), (6,), (2,), channels=(9, 3), stride=4, low=1),
    "phases as channels, in runs": problem_of(X, (600,), (119,), (10,), channels=(1, 48), stride=5),
    "phases of the inner axis as channels": problem_of(
        X, (9, 33), (5, 12), (3, 6), channels=(1, 9), stride=(2, 3), low=(1, 3), bias=True, layout="NXC", batch=2
    ),
    "phases of single taps as channels": problem_of(
        X, (160,), (25,), (8,), channels=(1, 17), stride=8, low=40, accumulate=True
    ),
    "stride and dilation share a factor": problem_of(X, (20,), (9,), (3,), stride=4, dilation=2, low=3),
    "pads as large as the dilated reach": problem_of(Y, (9, 9), (9, 9), (3, 3), dilation=18, low=18),
    "a long row of one channel": problem_of(Y, (300,), (149,), (5,), channels=(1, 1), stride=2, low=1),
    "no window meets the image": problem_of(
        Y, (9, 12), (8, 5), (2, 1), channels=(48, 40), stride=(1, 13), low=(0, 14), bias=True, layout="NXC"
    ),
    "tiles that meet no image": problem_of(
        Y, (8, 9), (39, 53), (3, 3), channels=(16, 16), low=(14, 23), bias=True, layout="NXC"
    ),
    "vectors that meet no image": problem_of(Y, (4, 9), (13, 70), (3, 5), channels=(3, 8), low=(5, 33), bias=True),
    "groups whose tiles meet no image": problem_of(
        Y, (4, 9), (9, 41), (3, 3), channels=(2, 2), groups=9, low=(3, 20), layout="NXC"
    ),
    "strided tiles that meet no image": problem_of(
        Y, (5, 11), (6, 47), (3, 3), channels=(3, 20), stride=(1, 2), low=(1, 48), layout="NXC"
    ),
    "tiles that meet no window": problem_of(X, (9, 60), (7, 9), (3, 3), channels=(16, 5), low=(0, -22), layout="NXC"),
    "fewer vectors in the last block of lanes": problem_of(
        Y, (5, 14), (5, 14), (3, 3), channels=(20, 100), bias=True, layout="NXC", **SAME
    ),
    "fewer vectors in the last block of lanes, planes": problem_of(
        X, (6, 14), (6, 14), (3, 3), channels=(100, 40), low=1, bias=True
    ),
    "fewer vectors in the last block of lanes, added": problem_of(
        Y, (9, 8), (9, 8), (1, 1), channels=(40, 104), accumulate=True, layout="NXC"
    ),
    "parts of several rows": problem_of(
        Y, (9, 65), (9, 65), (3, 3), channels=(40, 19), dilation=(3, 24), low=(3, 24), layout="NXC"
    ),
    "no element meets a window": problem_of(X, (8, 5), (9, 12), (2, 1), channels=(40, 48), low=(0, 20), layout="NXC"),
    "accumulate in 16 bits": problem_of(W, (19,), (19,), (3,), **SAME, dtype="bf16", out_dtype="bf16", accumulate=True),
    "five axes": problem_of(Y, (3, 2, 3, 2, 5), (2, 2, 2, 1, 5), (2, 1, 2, 2, 3), channels=(2, 3), low=(0, 0, 0, 0, 1)),
}
