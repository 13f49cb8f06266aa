"""Tables and texts: safe to print, and no wider than the terminal."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from convtime.core import text
from convtime.core.page import Facts, Sentences

HEADERS = ("layer", "time", "ratio")
ROWS = (
    ("layer1.0.downsample.0", "131.2 µs ± 0.3%", "0.998 [0.995, 1.001]"),
    ("fc", ("12 µs", "13 µs"), ""),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch):
    """Has texts made for a terminal of so many columns."""

    def of_width(columns: int) -> None:
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setenv("COLUMNS", str(columns))

    return of_width


def test_columns_are_aligned() -> None:
    assert text.table(HEADERS, ROWS, right=("ratio",)).splitlines() == [
        "layer                  time                            ratio",
        "─" * 60,
        "layer1.0.downsample.0  131.2 µs ± 0.3%  0.998 [0.995, 1.001]",
        "fc                     12 µs",
        "                       13 µs",
    ]
    assert text.render([Facts({"median": "1 s", "method": "cpu"}, indent=2)]).splitlines() == [
        "  median:  1 s",
        "  method:  cpu",
    ]


def test_what_is_piped_is_as_wide_as_it_needs_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # of the terminal that the pipe was made in
    long = "word " * 200
    assert long.strip() in text.render([Sentences([long])])
    assert len(text.table(HEADERS, ROWS).splitlines()) == 5
    monkeypatch.setattr(sys, "stdout", None)  # as where a service closed it
    assert len(text.table(HEADERS, ROWS).splitlines()) == 5


def test_a_terminal_gets_several_lines_and_all_of_the_words(terminal) -> None:
    terminal(40)
    table = text.table(HEADERS, ROWS)
    assert max(map(len, table.splitlines())) <= 40
    for word in ("131.2", "0.3%", "[0.995,", "1.001]", "layer1.0.dow", "nsample.0"):
        assert word in table
    short, *_ = text.table(("a", "b"), [("brief and whole", "word " * 20)]).splitlines()[2:]
    assert short.startswith("brief and whole  word")
    named = {"method": "cpu (asked for auto: the work is on the CPU)"}
    told = text.render([Facts(named, indent=2)])
    assert told.splitlines() == [
        "  method:  cpu (asked for auto: the work",
        "           is on the CPU)",
    ]


def test_a_name_cannot_steer_the_terminal_nor_mark_up() -> None:
    hostile = "µ\n\x1b[31m\u202e[bold]x[/bold]:smile:"
    shown = r"µ\n\x1b[31m\u202e[bold]x[/bold]:smile:"
    assert text.printable(hostile) == shown
    assert text.table([hostile], [[hostile]]).splitlines()[::2] == [shown, shown]
    assert text.render([Facts({hostile: hostile})]) == f"{shown}:  {shown}"
    assert text.render([Sentences([hostile])]) == shown


def test_a_number_has_its_noun() -> None:
    told = [text.counted(number, "pass", "passes") for number in (0, 1, 2000)]
    assert told == ["0 passes", "1 pass", "2,000 passes"]
    assert text.counted(2, "sample") == "2 samples"


CELLS = st.text(max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4), columns=st.integers(1, 120))
def test_nothing_is_lost_at_any_width(rows, columns: int, terminal) -> None:
    terminal(columns)
    told = text.table(HEADERS, rows)
    narrowest = 3 * 12 + 2 * 2  # three columns, each of a long word's beginning, with gaps
    assert all(cell_len(line) <= max(columns, narrowest) for line in told.splitlines())
    squeezed = re.sub(r"[\s─]", "", told)
    for row in rows:
        for cell in row:
            letters = re.sub(r"[\s─]", "", text.printable(cell))
            # Cells that share lines with others are taken apart: every letter is still there.
            assert all(squeezed.count(letter) >= letters.count(letter) for letter in set(letters))
    assert told.isprintable() or set(filter(lambda letter: not letter.isprintable(), told)) == {
        "\n"
    }


@pytest.mark.thorough
def test_what_prints_is_loaded_when_something_is_printed() -> None:
    code = (
        "import sys, convtime; from convtime.timing.measurement import Measurement; "
        "print([name for name in ('vl_convert',) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
