"""Axes as gathers: exactly the terms of the form, no more and no fewer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgrad.plan.axes import Phase, _x_axis, _y_axis, batch_axis, gather_axes
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.conv import ConvProblem, Unknown

many = settings(max_examples=400, deadline=None, derandomize=True)


@st.composite
def geometries(draw):
    """(image, windows, taps, stride, dilation, low) of one axis: any, consistent or not."""
    return tuple(draw(st.integers(first, last)) for first, last in ((1, 14), (1, 12), (0, 5), (1, 6), (1, 5), (0, 12)))


def terms(geometry):
    """(q, p, r) of every product of the form: pixel, window and tap."""
    image, windows, taps, stride, dilation, low = geometry
    return {
        (stride * p + dilation * r - low, p, r)
        for p in range(windows)
        for r in range(taps)
        if 0 <= stride * p + dilation * r - low < image
    }


def gathered(axis):
    """(output, input, tap) of every product of a gather that meets the input."""
    return [
        (phase.first + j * axis.out_step, place, phase.tap + t * axis.tap_step)
        for phase in axis.phases
        for j in range(phase.count)
        for t in range(phase.taps)
        if 0 <= (place := reads(axis, phase, j, t)) < axis.in_extent
    ]


def reads(axis, phase, j, t):
    return axis.in_step * j + phase.offset + t * axis.offset_step


def both(geometry):
    """The axis of either unknown, with the terms as (output, input, tap)."""
    form = terms(geometry)
    yield _y_axis(*geometry), {(p, q, r) for q, p, r in form}
    yield _x_axis(*geometry), form


@many
@given(geometries(), st.integers(0, 6), st.integers(1, 6))
def test_which_outputs_of_a_tile_meet_the_input(geometry, first, size):
    for axis, _ in both(geometry):
        for phase in axis.phases:
            for t, met in enumerate(axis.met(phase, first, size)):
                inside = [m for m in range(size) if 0 <= reads(axis, phase, first + m, t) < axis.in_extent]
                assert list(met) == [m for m in inside if first + m < phase.count]


@many
@given(geometries())
def test_phases_hold_exactly_the_terms_of_the_form(geometry):
    for axis, form in both(geometry):
        found = gathered(axis)
        assert len(found) == len(set(found)), "a term is met twice"
        assert set(found) == form


@many
@given(geometries())
def test_every_output_belongs_to_one_phase(geometry):
    for axis, _ in both(geometry):
        outputs = [phase.first + j * axis.out_step for phase in axis.phases for j in range(phase.count)]
        assert sorted(outputs) == list(range(axis.out_extent))


@many
@given(geometries())
def test_only_useless_taps_are_trimmed_and_all_at_the_ends(geometry):
    for axis, _ in both(geometry):
        for phase in axis.phases:
            useful = [
                any(0 <= reads(axis, phase, j, t) < axis.in_extent for j in range(phase.count))
                for t in range(phase.taps)
            ]
            assert not useful or (useful[0] and useful[-1])


@many
@given(geometries())
def test_clipped_inside_and_reach_agree_with_counting(geometry):
    for axis, _ in both(geometry):
        clipped, offsets = False, []
        for phase in axis.phases:
            offsets += [phase.offset + t * axis.offset_step for t in range(phase.taps)]
            whole = [
                all(0 <= reads(axis, phase, j, t) < axis.in_extent for t in range(phase.taps))
                for j in range(phase.count)
            ]
            clipped |= not all(whole)
            low, high = axis.inside(phase)
            assert [j for j, is_whole in enumerate(whole) if is_whole] == list(range(low, high))
        assert axis.clipped == clipped
        assert axis.reach == ((min(offsets), max(offsets)) if offsets else (0, 0))


@many
@given(geometries(), st.integers(1, 6))
def test_skips_says_whether_a_tap_may_be_left_out_for_some_tile(geometry, tile):
    """Never false where some tile has a tap that meets nothing; bounds of loops over taps rely on it."""
    for axis, _ in both(geometry):
        for phase in axis.phases:
            for first in range(0, phase.count, tile):
                for t in range(phase.taps):
                    places = [reads(axis, phase, first + m, t) for m in range(tile)]
                    if places[-1] < 0 or places[0] >= axis.in_extent:
                        assert axis.skips(tile)


@many
@given(geometries(), st.integers(1, 6))
def test_visits_and_tiles_agree_with_counting(geometry, tile):
    for axis, _ in both(geometry):
        visits = tiles = 0
        for phase in axis.phases:
            starts = range(0, phase.count, tile)
            tiles += len(starts)
            for start in starts:
                outputs = range(start, min(start + tile, phase.count))
                for t in range(phase.taps):
                    visits += any(0 <= reads(axis, phase, j, t) < axis.in_extent for j in outputs)
        assert (axis.visits(tile), axis.tiles(tile)) == (visits, tiles)


@many
@given(geometries())
def test_longest_and_fullest_phases(geometry):
    for axis, _ in both(geometry):
        assert axis.count == max(phase.count for phase in axis.phases)
        assert axis.taps == max(phase.taps for phase in axis.phases)
        assert axis.even == (len({phase.taps for phase in axis.phases}) == 1)


def test_a_strided_image_side_has_dense_phases():
    """A 4-tap kernel of stride 2 with pad 1, the upsampling layer of generators: two taps for each parity."""
    axis = _x_axis(8, 4, 4, 2, 1, 1)
    assert (axis.in_step, axis.out_step, axis.tap_step) == (1, 2, 2)
    assert [phase.taps for phase in axis.phases] == [2, 2]


def test_a_phase_that_no_tap_reaches_has_none():
    axis = _x_axis(9, 3, 1, 3, 1, 0)
    assert [phase.taps for phase in axis.phases] == [1, 0, 0]


def test_taps_wholly_in_the_padding_are_left_out():
    """DeepLab's dilation 18 on 9 pixels: only the middle tap meets the image."""
    axis = _y_axis(9, 9, 3, 1, 18, 18)
    assert axis.phases == (Phase(first=0, count=9, taps=1, offset=0, tap=1),)
    assert not axis.clipped


# --- windows


@many
@given(geometries())
def test_window_axes_agree_with_counting(geometry):
    image, windows, taps, stride, dilation, low = geometry
    taps = max(1, taps)
    axis = WindowAxis(windows, image, taps, stride, dilation, low)
    whole = [all(0 <= stride * p + dilation * r - low < image for r in range(taps)) for p in range(windows)]
    assert [p for p, is_whole in enumerate(whole) if is_whole] == list(range(*axis.inside))
    assert axis.clipped == (not all(whole))
    for together in (t for t in range(1, taps + 1) if taps % t == 0):
        met = [
            sum(0 <= stride * p + dilation * r - low < image for r in range(first, first + together))
            for p in range(windows)
            for first in range(0, taps, together)
        ]
        assert axis.meeting(together) == {n: met.count(n) for n in set(met) - {0}}


@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.Y])
def test_the_batch_comes_first_and_has_one_tap(unknown):
    problem = problem_of(unknown)
    batch, *spatial = gather_axes(problem)
    assert batch == batch_axis(3)
    assert gathered(batch) == [(n, n, 0) for n in range(3)]
    make = _y_axis if unknown is Unknown.Y else _x_axis
    assert spatial == [make(7, 4, 3, 2, 1, 1), make(9, 5, 2, 1, 3, 0)]


def test_windows_of_a_problem():
    assert window_axes(problem_of(Unknown.W)) == (
        WindowAxis(3, 3, 1, 1, 1, 0),
        WindowAxis(4, 7, 3, 2, 1, 1),
        WindowAxis(5, 9, 2, 1, 3, 0),
    )


def problem_of(unknown):
    return ConvProblem(
        unknown=unknown, batch=3, groups=1, x_channels=1, y_channels=1, x_extent=(7, 9), y_extent=(4, 5), taps=(3, 2),
        stride=(2, 1), dilation=(1, 3), pad_low=(1, 0), x_strides=(63, 63, 63, 9, 1), w_strides=(6, 6, 6, 2, 1),
        y_strides=(20, 20, 20, 5, 1),
    )  # fmt: skip
