"""Numbers and names on the command line."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convtime.cli import arguments

LARGEST = 2**31 - 1
TEXTS = st.one_of(
    st.integers(-3, LARGEST + 3).map(str),
    st.sampled_from([LARGEST, LARGEST + 1]).map(str),
    st.floats().map(str),
    st.from_regex(r"[0-9_.,eE+\- ٣]{0,5}", fullmatch=True),
)


def parsed(parse: Callable[[str], object], text: str) -> object:
    """Return the value, or None if it is refused in words that quote the text."""
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        quoted = f"got {text!r}, but it must be " in str(error)
        assert quoted or parse is arguments.shape
        return None


def whole(text: str, least: int) -> int | None:
    fits = re.fullmatch("[0-9]{1,20}", text) and least <= int(text) <= LARGEST
    return int(text) if fits else None


@given(TEXTS)
@example("9" * 5000)
def test_whole_numbers_have_decimal_digits_and_a_range(text: str) -> None:
    assert parsed(arguments.batch, text) == whole(text, 1)
    assert parsed(arguments.count, text) == whole(text, 0)
    assert parsed(arguments.workers, text) == whole(text, 1)
    sizes = [whole(part.strip(), 1) for part in text.split(",")]
    assert parsed(arguments.shape, text) == (None if None in sizes else tuple(sizes))


@given(TEXTS)
@example("inf")
@example("0")
def test_numbers_are_finite_and_seconds_above_0(text: str) -> None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    assert parsed(arguments.number, text) == (value if math.isfinite(value) else None)
    in_range = 0 < value <= LARGEST
    assert parsed(arguments.seconds, text) == (value if in_range else None)


def test_words_stand_for_themselves() -> None:
    assert arguments.workers("gpus") == "gpus"
    assert [*map(arguments.warmup, ("steady", "3", "0.5"))] == ["steady", 3, 0.5]
    assert isinstance(arguments.warmup("3"), int)
    with pytest.raises(argparse.ArgumentTypeError, match="must be the name of a file"):
        arguments.file_name("")
