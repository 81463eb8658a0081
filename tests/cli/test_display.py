import sys

import pytest

from convgrad.cli import display
from convgrad.cli.display import Table, progress, seconds

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


def test_rich_shows_tables_and_progress_on_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with progress(2) as shown:
        shown.step("one [x]")
    ROWS.print()
    assert "longer [b]" in capsys.readouterr().out
