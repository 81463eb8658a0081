import pytest

from convgrad.cli.layout import fit, lines

HEADINGS = ["layer", "operation", "checksum", "plan"]
ROW = ["up8", "ConvTransposeBackwardData", "0123456789abcdef", "vectors along outputs, tile (1, 3, 16) x 8, 2 tasks"]
NATURAL = 5 + 25 + 16 + len(ROW[3])


def fitted(width, **how):
    grid = fit(HEADINGS, [ROW], width, spare=["checksum"], folded=["plan"], **how)
    return grid, [" ".join(cell) for cell in grid.rows[1]]


def test_where_there_is_room_nothing_changes():
    grid, row = fitted(NATURAL + 3 * 3)
    assert (row, grid.gap, grid.left_out) == (ROW, 3, ())
    assert grid.width == NATURAL + 9


def test_columns_stand_closer_first():
    grid, row = fitted(NATURAL + 3 * 2)
    assert (row, grid.gap) == (ROW, 2)


def test_then_names_of_operations_are_broken():
    grid, _ = fitted(NATURAL + 3 * 2 - 1)
    assert grid.rows[1][1] == ("ConvTranspose", "BackwardData")
    assert grid.rows[1][3] == (ROW[3],)
    (name,) = fit(["operation"], [["ConvTransposeBackpropFilters"]], 20).rows[1]
    assert name == ("ConvTranspose", "BackpropFilters")


def test_then_words_go_to_the_next_line():
    grid, row = fitted(80)
    assert grid.width <= 80
    assert row[3] == ROW[3]
    assert len(grid.rows[1][3]) == 2
    assert grid.left_out == ()


def test_then_columns_are_left_out_while_what_stays_is_readable():
    grid, row = fitted(60)
    assert grid.left_out == ("checksum",)
    assert [row[0], row[2]] == [ROW[0], ROW[3]]
    assert grid.width <= 60


@pytest.mark.parametrize("width", [60, 45, 38])
def test_words_are_broken_last(width):
    problem = "mb2_ic16ih14oc32oh14kh3ph1_and_so_on"
    grid = fit(["problem", "time"], [[problem, "1.5 ms"]], width - 10, folded=["problem"])
    assert "".join(grid.rows[1][0]) == problem
    assert grid.width <= width - 10


def test_what_cannot_fit_is_as_narrow_as_it_gets():
    grid = fit(["a", "b"], [["x" * 50, "y" * 50]], 40, folded=["b"])
    assert grid.rows[1] == (("x" * 50,), ("y" * 10,) * 5)


def test_lines_begin_below_the_last_column():
    text = "plan       stages            pack in 44 tasks, then main in 8 tasks, and some more"
    first, second = lines(text, 70)
    assert text.startswith(first)
    assert second == " " * 29 + "and some more"
    assert lines("  a short one", 70) == ["  a short one"]
    assert lines("w" * 90, 70) == ["w" * 90]
