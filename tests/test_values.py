"""Frozen values are what frozen dataclasses are."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from typing import ClassVar

import pytest

from convgrad import values
from convgrad.values import SELDOM, frozen, replace


@pytest.fixture(params=["of a few", "of many"], autouse=True)
def by_field_or_compiled(request, monkeypatch):
    """Values as those of a class that is seldom made are, and as they are from then on."""
    for cls in (Size, Box, Cube):
        if request.param == "of many":
            assert inspect.isfunction(cls.__init__)  # compiled, since it was asked for
        else:
            monkeypatch.setattr(cls, "__init__", values._Init(cls))


@frozen
class Size:
    """Positional."""

    height: int
    width: int = 1


@frozen(kw_only=True)
class Box(Size):
    """With everything that a field can be told."""

    KIND: ClassVar[str] = "box"

    name: str
    marks: list[int] = field(default_factory=list)
    seen: dict[str, int] = field(init=False, default_factory=dict, compare=False, repr=False)
    area: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.height * self.width)

    def twice(self) -> int:
        """Of the area."""
        return 2 * self.area


@frozen
class Cube(Box):
    """With no fields of its own."""

    def twice(self) -> int:
        """Through the base."""
        return super().twice()


def test_fields_are_given_by_place_name_or_default():
    assert (Size(2).height, Size(2).width, Size(width=3, height=2).width) == (2, 1, 3)
    box = Box(2, 5, name="b")
    assert (box.name, box.marks, box.seen, box.area, box.KIND) == ("b", [], {}, 10, "box")
    assert Box(2, name="b", marks=[1]).marks == [1]
    with pytest.raises(TypeError, match="name"):
        Box(2, 5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="positional"):
        Box(2, 5, "b")  # pyright: ignore[reportCallIssue]


def test_what_a_factory_makes_is_nobody_elses():
    one, other = Box(1, name="b"), Box(1, name="b")
    one.marks.append(1)
    one.seen["a"] = 1
    assert not other.marks
    assert not other.seen


def test_equal_values_are_equal_and_hash_alike():
    assert Size(2, 3) == Size(2, 3) != Size(2, 4)
    assert hash(Size(2, 3)) == hash(Size(2, 3)) != hash(Size(2, 4))
    one, other = Box(1, name="b"), Box(1, name="b")
    one.seen["a"] = 1
    assert one == other  # not compared
    assert Cube(1, name="b") != Box(1, name="b")
    assert Size(1) != 1


def test_they_are_printed_with_what_they_are_told():
    assert repr(Size(2, 3)) == "Size(height=2, width=3)"
    assert repr(Cube(2, name="b")) == "Cube(height=2, width=1, name='b', marks=[], area=2)"


def test_nothing_can_be_assigned_or_deleted():
    size = Size(2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'height'"):
        size.height = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'depth'"):
        size.depth = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'width'"):
        del size.width
    assert size == Size(2)


@pytest.mark.parametrize("changed", [replace, dataclasses.replace])
def test_a_changed_value_is_made_anew(changed):
    box = Box(2, 5, name="b")
    wide = changed(box, width=7)
    assert (wide.area, wide.name, box.width, type(wide)) == (14, "b", 5, Box)
    with pytest.raises(TypeError, match="depth"):
        changed(box, depth=1)


def test_dataclasses_and_inspect_know_them():
    assert [each.name for each in dataclasses.fields(Size)] == ["height", "width"]
    assert dataclasses.asdict(Size(2)) == {"height": 2, "width": 1}
    assert str(inspect.signature(Size)) == "(height: 'int', width: 'int' = 1) -> None".replace("'", "")
    assert list(inspect.signature(Box).parameters) == ["height", "width", "name", "marks"]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda box: pickle.loads(pickle.dumps(box))])
def test_copies_are_equal(again):
    box = Box(2, 5, name="b", marks=[1])
    assert again(box) == box
    assert again(box).area == 10


def test_methods_reach_those_of_the_base():
    assert Cube(2, 3, name="c").twice() == 12


def test_a_class_whose_values_are_made_often_gets_a_method_for_it():
    @frozen
    class Point:
        across: int
        down: int = 0

    for number in range(SELDOM):
        assert isinstance(vars(Point)["__init__"], values._Init)
        assert Point(number).across == number
    assert Point(7) == Point(7, down=0)
    assert inspect.isfunction(vars(Point)["__init__"])


def test_what_is_wrong_with_the_first_value_is_said_at_once():
    @frozen
    class Point:
        across: int
        down: int = field(init=False, default=3)

    assert Point(1).down == 3
    for wrong, message in (
        (lambda: Point(), "across"),
        (lambda: Point(1, 2), "positional"),
        (lambda: Point(1, across=1), "multiple"),
        (lambda: Point(1, down=2), "down"),
    ):
        Point.__init__ = values._Init(Point)
        with pytest.raises(TypeError, match=message):
            wrong()
