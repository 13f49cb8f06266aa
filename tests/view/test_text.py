"""Tables and texts: safe to print, no wider than the terminal; and numbers with their units."""

import io
import math
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from convtime.view import text, wording
from convtime.view.page import Facts, Sentences
from convtime.view.wording import (
    format_bytes,
    format_estimate,
    format_seconds,
    format_share,
    format_signed,
)

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


def test_columns_are_aligned_and_a_number_has_its_noun() -> None:
    assert text.table(HEADERS, ROWS, right=("ratio",)).splitlines() == [
        "layer                  time                            ratio",
        "─" * 60,
        "layer1.0.downsample.0  131.2 µs ± 0.3%  0.998 [0.995, 1.001]",
        "fc                     12 µs",
        "                       13 µs",
    ]
    facts = text.render([Facts({"median": "1 s", "method": "cpu"}, indent=2)])
    assert facts.splitlines() == ["  median:  1 s", "  method:  cpu"]
    told = [wording.counted(number, "pass", "passes") for number in (0, 1, 2000)]
    assert told == ["0 passes", "1 pass", "2,000 passes"]
    assert wording.counted(2, "sample") == "2 samples"


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
    assert wording.printable(hostile) == shown
    assert text.table([hostile], [[hostile]]).splitlines()[::2] == [shown, shown]
    assert text.render([Facts({hostile: hostile})]) == f"{shown}:  {shown}"
    assert text.render([Sentences([hostile])]) == shown


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
            letters = re.sub(r"[\s─]", "", wording.printable(cell))
            # Cells that share lines with others are taken apart: every letter is still there.
            assert all(squeezed.count(letter) >= letters.count(letter) for letter in set(letters))
    assert told.isprintable() or set(filter(lambda letter: not letter.isprintable(), told)) == {
        "\n"
    }


SCALES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
TIMES = st.floats(1e-9, 1e4)


@given(TIMES, st.integers(1, 6))
def test_a_time_has_its_digits_in_the_unit_in_which_it_is_at_least_1(
    seconds: float, digits: int
) -> None:
    number, unit = format_seconds(seconds, digits).split()
    exponent = math.floor(math.log10(seconds))
    step = max(10.0 ** (exponent - digits + 1), 10.0**-9 if unit == "ns" and digits == 1 else 0)
    assert float(number) * SCALES[unit] == pytest.approx(
        seconds, abs=max(0.51 * step, 0.51 * SCALES[unit] if "." not in number else 0)
    )
    assert float(number) >= 1
    assert unit == "s" or float(number) < 1000
    if "." in number:
        assert len(number.replace(".", "")) == digits


def test_the_ends_of_times_are_told() -> None:
    assert format_seconds(9.9996e-7) == "1.000 µs"
    assert format_seconds(0.0) == "0.000 ns"
    assert format_seconds(math.nan) == "nan s"
    assert format_signed(-1.5e-6) == "−1.500 µs"
    assert format_signed(0.0) == "+0.000 ns"


@given(TIMES, st.floats(0, 0.5), st.floats(0, 0.5))
def test_an_interval_and_a_share_have_the_unit_of_the_whole(
    seconds: float, below: float, above: float
) -> None:
    low, high = seconds * (1 - below), seconds * (1 + above)
    told = re.fullmatch(r"(\S+) (\S+) \[(\S+), (\S+)\]", format_estimate(seconds, low, high))
    share = re.fullmatch(r"(\S+) of (\S+) (\S+)", format_share(low, seconds))
    assert told is not None
    assert share is not None
    assert f"{told[1]} {told[2]}" == f"{share[2]} {share[3]}" == format_seconds(seconds)
    ends = [float(each) * SCALES[told[2]] for each in (told[3], told[4], share[1])]
    assert ends == pytest.approx([low, high, low], abs=1e-3 * seconds)
    assert format_estimate(seconds, -math.inf, high) == format_seconds(seconds)


@given(st.integers(0, 2**49))
def test_bytes_are_below_1024_of_their_unit(count: int) -> None:
    assert [format_bytes(1024**power) for power in range(3)] == ["1 B", "1 KiB", "1 MiB"]
    number, unit = format_bytes(count).split()
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert float(number) * 1024**power == pytest.approx(count, rel=1e-3)
    assert (1024**power if power else 0) <= count < 1024 ** (power + 1)
