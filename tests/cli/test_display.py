import json
import os
import shutil
import sys

import pytest

from convgrad.cli import display
from convgrad.cli.display import Table, Verbatim, progress, seconds, show

ROWS = Table(["name", "time"], [["a", "1.5 ms"], ["longer [b]", "12 s"]], numbers=["time"])


def test_a_table_is_aligned_words(capsys):
    ROWS.print()
    assert capsys.readouterr().out == "name          time\na           1.5 ms\nlonger [b]    12 s\n"


TIMES = {2.0: "2 s", 0.0123456: "12.3 ms", 5e-6: "5 us", 0.99951: "1000 ms", 3e-8: "0.03 us", 5000: "5000 s"}


@pytest.mark.parametrize(("value", "text"), TIMES.items())
def test_times_have_a_unit(value, text):
    assert seconds(value) == text


def test_progress_is_not_shown_to_a_pipe(capsys):
    with progress(2) as shown:
        shown.step("one")
    assert capsys.readouterr() == ("", "")


def test_progress_without_rich_is_one_line_that_goes_away(capsys, monkeypatch):
    monkeypatch.setattr(display, "_has_rich", lambda: False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(2) as shown:
        shown.step("one")
        shown.step("two")
    assert capsys.readouterr().err == "\r\033[K[1/2] one\r\033[K[2/2] two\r\033[K"


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of so many columns, without colours."""

    def make(columns):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
        monkeypatch.setattr(display, "_has_rich", lambda: False)

    return make


def test_a_table_on_a_terminal_has_a_rule_and_fits(capsys, terminal):
    terminal(80)
    ROWS.print()
    assert (
        capsys.readouterr().out == "name           time\n" + "─" * 19 + "\na            1.5 ms\nlonger [b]     12 s\n"
    )


def test_what_had_no_room_is_said(capsys, terminal):
    terminal(20)
    Table(["name", "checksum"], [["some layer", "0123456789abcdef"]], spare=["checksum"]).print()
    *_, row, note = capsys.readouterr().out.splitlines()
    assert (row, note) == ("some layer", "a wider terminal shows checksum, too; so does a pipe")


LONG = "plan       vectors           output channels and all that there is to say"


def test_text_on_a_terminal_is_broken_between_words_below_its_column(capsys, terminal):
    terminal(60)
    show({}, as_json=False, text=[LONG, Verbatim(LONG)])
    assert capsys.readouterr().out.splitlines() == [
        "plan       vectors           output channels and all that",
        " " * 29 + "there is to say",
        LONG,
    ]


def test_a_pipe_and_json_know_no_width(capsys):
    show({"a": LONG}, as_json=False, text=[LONG])
    assert capsys.readouterr().out == LONG + "\n"
    show({"a": LONG}, as_json=True, text=[LONG])
    assert json.loads(capsys.readouterr().out) == {"a": LONG}


def test_rich_shows_tables_and_progress_on_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with progress(2) as shown:
        shown.step("one [x]")
    ROWS.print()
    assert "longer [b]" in capsys.readouterr().out
