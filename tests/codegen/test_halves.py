"""Pairs of numbers half a block apart, in pieces: every way to read them, against NumPy, between guard pages."""

import ml_dtypes
import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import compile_function
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.halves import HalvesCopy
from convgrad.codegen.copies.split_weights import SplitPanel
from convgrad.codegen.copies.splitting import Pieces, room_for_squares
from convgrad.codegen.isa import ISAS
from convgrad.dtypes import numpy_dtype
from convgrad.plan.by_matrix.matrix import COLUMNS, halves_of
from convgrad.plan.machine import why_not
from convgrad.plan.strides import row_major

ISA = "amx_emulated"
pytestmark = pytest.mark.skipif(why_not(ISA) is not None, reason=f"tiles cannot be emulated here: {why_not(ISA)}")
PIECES = {"f32": 3, "f16": 2, "bf16": 1}
OUTER = 3

WAYS = {  # steps from channel to channel and along the run, in this many numbers for so many channels and so long a run
    "channels lie together": lambda channels, run: (1, channels),
    "channels lie together, far from the next": lambda channels, run: (1, 3 * channels + 5),
    "the run lies together": lambda channels, run: (run, 1),
    "every second number of the run": lambda channels, run: (2 * run + 1, 2),
    "nothing lies together": lambda channels, run: (7 * run, 7),
    "backwards": lambda channels, run: (-run, 1),
}


def numbers(shape, dtype):
    """All different, and of full precision."""
    return np.random.default_rng(7).standard_normal(shape).astype(numpy_dtype(dtype))


def copy_of(b, dtype, step):
    pieces = Pieces(PIECES[dtype], step, True, None, room_for_squares(b, COLUMNS))
    return Copy(isa=ISAS[ISA], compute="f32", src_dtype=dtype, dst_dtype="bf16", pieces=pieces)


def assert_split(found, wanted):
    """`found` are pieces along the first axis, of which sums are exact; each is as small as it can be."""
    found = found.astype(np.float32)
    np.testing.assert_array_equal(found.sum(axis=0, dtype=np.float64), wanted.astype(np.float64))
    for n in range(1, len(found)):
        assert np.all(np.abs(found[n]) <= 2.0**-8 * np.abs(found[n - 1]))


@pytest.mark.parametrize("narrow", [False, True], ids=["", "narrow"])
@pytest.mark.parametrize("run", [1, 16, 37])
@pytest.mark.parametrize("channels", [32, 21, 16, 1])
@pytest.mark.parametrize("dtype", PIECES)
@pytest.mark.parametrize("way", WAYS)
def test_pairs_of_channels(way, dtype, channels, run, narrow):
    channel_step, run_step = WAYS[way](channels, run)
    outer_step = abs(channel_step) * channels + abs(run_step) * run
    source = StridedArray((OUTER, run, channels), (outer_step, run_step, channel_step), numpy_dtype(dtype), low=narrow)
    source.view[...] = numbers(source.view.shape, dtype)
    first, second = lanes = halves_of(channels)
    room = first if narrow else COLUMNS
    shape = (PIECES[dtype], OUTER, run, room, 2)
    target = StridedArray(shape, row_major(shape, 1), np.int16, low=narrow)

    def body(b, src, dst, extent):
        pairs = HalvesCopy(
            copy=copy_of(b, dtype, OUTER * run * 2 * room), lanes=lanes, lane_step=channel_step,
            apart=first * channel_step, room=room,
        )  # fmt: skip
        along = Dim(extent, run_step, 2 * room)
        pairs.emit(b, src, dst, [Dim(OUTER, outer_step, run * 2 * room)], along, (extent, extent if second else 0))

    target.view[...] = 0 if way == "nothing lies together" else -1  # only numbers that there are are written then
    compile_function(ISA, ["ptr", "ptr", "i64"], body)(source.address, target.address, run)
    found = target.view.view(ml_dtypes.bfloat16)
    assert not found[..., first:, :].any()
    assert not found[..., second:, 1].any()
    assert_split(found[..., :first, 0], source.view[..., :first])
    assert_split(found[..., :second, 1], source.view[..., first:])
    assert target.only_elements_changed()


@pytest.mark.parametrize("depth", [32, 20, 48])
@pytest.mark.parametrize("side", ["lanes", "channels"])
@pytest.mark.parametrize(("lanes", "channels"), [(32, 64), (32, 40), (19, 64), (5, 17), (16, 32)])
@pytest.mark.parametrize("dtype", PIECES)
def test_panels_of_weights(dtype, lanes, channels, side, depth):
    taps, room = 3, -(-channels // depth) * depth
    lane_step, channel_step = (1, lanes) if side == "lanes" else (channels, 1)
    source = StridedArray((taps, channels, lanes), (channels * lanes, channel_step, lane_step), numpy_dtype(dtype))
    source.view[...] = numbers(source.view.shape, dtype)
    tiles = 2 if lanes > COLUMNS else 1
    shape = (taps, room // depth, PIECES[dtype], tiles, depth // 2, COLUMNS, 2)
    target = StridedArray(shape, row_major(shape, 1), np.int16)

    def body(b, src, dst, many, count):
        panel = SplitPanel(
            copy=copy_of(b, dtype, tiles * COLUMNS * depth), tiles=tiles, depth=depth,
            taps=[(taps, channels * lanes)], room=room, last=channels % depth, far=side == "lanes" or lanes == 32,
            next_panel=tiles * COLUMNS * lane_step,
        )  # fmt: skip
        panel.emit(b, src, dst, (many, lane_step), (count, channel_step))

    target.view[...] = -1
    compile_function(ISA, ["ptr", "ptr", "i64", "i64"], body)(source.address, target.address, lanes, channels)
    found = np.moveaxis(target.view.view(ml_dtypes.bfloat16), 2, 0)  # the piece, tap, block, tile, pair, lane, half
    wanted = np.zeros((taps, room // depth, tiles, depth // 2, COLUMNS, 2), np.float64)
    for channel in range(channels):
        block, place = divmod(channel, depth)
        first, _ = halves_of(min(depth, channels - block * depth))
        for lane in range(lanes):
            tile, column = divmod(lane, COLUMNS)
            wanted[:, block, tile, place % first, column, place // first] = source.view[:, channel, lane]
    assert_split(found, wanted)
