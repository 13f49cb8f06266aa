"""Sentences about arguments that are not allowed."""

import numpy as np
import pytest
import torch

from convtime.core.checks import as_whole, check_one_of, check_type, check_whole, is_finite, require
from convtime.core.errors import InputError


def test_what_is_allowed_passes() -> None:
    require([1], "never")
    check_one_of("mode", "a", ("a", "b"))
    check_one_of("mode", None, (None, "b"))
    check_type("x", 1, (int, str), "a number or a name")
    assert [check_whole("n", n) for n in (0, True + 1, np.int64(7), torch.tensor(3))] == [
        0,
        2,
        7,
        3,
    ]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("c", "mode must be one of 'a', 'b', got 'c'; leave it out"),
        (
            "x" * 99,
            "mode must be one of 'a', 'b', got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'; leave it out",
        ),
        (torch.ones(3), "mode must be one of 'a', 'b', got a Tensor; leave it out"),
        (np.ones(3), "mode must be one of 'a', 'b', got a ndarray; leave it out"),
        ([], "mode must be one of 'a', 'b', got []; leave it out"),
        ([torch.ones(3)], "mode must be one of 'a', 'b', got a list; leave it out"),
        (torch.int8, "mode must be one of 'a', 'b', got torch.int8; leave it out"),
    ],
)
def test_another_value_than_those_allowed(value: object, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        check_one_of("mode", value, ("a", "b"), "; leave it out")
    assert str(caught.value) == sentence


def test_another_type() -> None:
    with pytest.raises(TypeError, match="^x must be a tensor, got 3$"):
        check_type("x", 3, torch.Tensor, "a tensor")


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, torch.ones(2), torch.tensor(1.5)])
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(InputError, match=r"^n must be a whole number, 0 or more, got "):
        check_whole("n", value)
    assert as_whole(value) in (None, -1)


def test_a_count_above_the_most() -> None:
    with pytest.raises(InputError, match=r"^n must be a whole number from 1 to 9, got 10$"):
        check_whole("n", 10, 1, 9)


def test_a_condition_that_does_not_hold() -> None:
    with pytest.raises(InputError, match="^leave out x$"):
        require(not 1, "leave out x")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), torch.tensor(1.0)])
def test_finite_numbers(value: object) -> None:
    assert is_finite(value)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("-inf"), torch.ones(2)])
def test_what_is_no_finite_number(value: object) -> None:
    assert not is_finite(value)
