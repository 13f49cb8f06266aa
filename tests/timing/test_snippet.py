"""Statements as text: what they compute, which variables they find, and how their errors read."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from convtime.cli import snippet
from convtime.core.errors import InputError
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.placement import make_copies
from convtime.timing.snippet import function_of
from tests.helpers.placed import CPU


def options_of(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    snippet.add_options(parser)
    return parser.parse_args(given)


def test_a_function_returns_what_its_last_line_evaluates_to() -> None:
    for code, value in (
        ("x + 1", 3),
        ("y = x * 3; y", 6),
        ("\n  if x:\n      y = 5\n  y\n", 5),
        ("y = 1", None),
        ("sum(x * each for each in [1, 2])", 6),
    ):
        namespace = {"x": 2}
        assert function_of(code, namespace, what="it")() == value, code
        assert namespace == {"x": 2}


def test_a_variable_of_the_setup_is_rebound_as_in_timeit() -> None:
    namespace = {"n": 0}
    function = function_of("n += 1", namespace, what="it")
    for _ in range(5):
        function()
    assert namespace["n"] == 5


def test_copies_are_made_of_the_tensors_that_a_statement_only_reads() -> None:
    namespace = {"x": torch.ones(4), "unused": torch.ones(4)}
    candidate = Candidate(function_of("torch.relu(x)", namespace | {"torch": torch}, what="it"))
    original = Original(candidate, CPU)
    assert (original.left_out, len(original.storages)) == ((), 1)
    copied: Any = make_copies(original, 1, "random").candidates[0].fn
    namespace["x"].fill_(-1)
    assert copied().tolist() == [1, 1, 1, 1]
    replaces = Candidate(function_of("x = x + 1", {"x": torch.ones(4)}, what="it"))
    assert Original(replaces, CPU).left_out == ("global 'x'",)


def test_setup_and_statement_share_variables_and_a_device() -> None:
    options = options_of("-s", "x = torch.ones(3)", "-s", "y = 2 * x")
    namespace: dict[str, Any] = {"torch": torch}
    snippet.set_up(options, namespace, torch.device("meta"))
    assert namespace["y"].device.type == "meta"
    assert torch.ones(1).device == CPU


def test_a_statement_is_timed_as_its_options_say() -> None:
    options = options_of(
        *("--setup", "calls, resets = [], []", "--before", "resets.append(1)", "--warmup", "2"),
        *("--stop", "count", "--max-samples", "3", "--min-samples", "3", "--no-exclusive"),
    )
    namespace: dict[str, Any] = {}
    snippet.set_up(options, namespace)
    measured = snippet.time_statement("calls.append(1)\n\n0", options, namespace)
    assert measured.name == "calls.append(1); 0"
    assert (len(measured.seconds), measured.warmup_requested) == (3, 2)
    assert not measured.exclusive.requested
    assert len(namespace["resets"]) == len(namespace["calls"])
    options.name = "append"
    assert snippet.time_statement("calls.append(1)", options, namespace).name == "append"


def test_errors_name_the_line_or_the_option() -> None:
    options = options_of("--device", "cpu")
    with pytest.raises(InputError, match="timeout must be a positive number"):
        snippet.set_up(options_of("--timeout", "0", "-s", "1 / 0"), {})
    invalid = "of the statement is not valid Python"
    for code, says in (
        ("x = ", f"line 1 {invalid} (invalid syntax): x ="),
        ("1\nreturn 2", f"line 2 {invalid} ('return' outside function)"),
        ("yield 1", f"line 1 {invalid} ('yield' outside function)"),
        ("from torch import *", f"line 1 {invalid} (import * only"),
        (" \n", "the statement is empty; give Python code, such as 'torch.relu(x)'"),
        ("x = 1\ny", "line 2 of the statement raised NameError: name 'y' is not defined"),
        ("exit()", "line 1 of the statement raised SystemExit"),
        ("def f():\n  return 1 / 0\nf()", "line 2 of the statement raised ZeroDivisionError"),
    ):
        with pytest.raises(InputError) as error, snippet.prepare(options) as (namespace, _):
            snippet.time_statement(code, options, namespace)
        assert str(error.value).startswith(says)
