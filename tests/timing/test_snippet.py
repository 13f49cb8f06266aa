"""Statements as text: what they compute, which variables they find, and how their errors read."""

import argparse
import timeit
from typing import Any

import pytest
import torch

from convtime.cli import snippet
from convtime.core.errors import InputError
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.copying import Original
from convtime.timing.sampling.placement import make_copies
from convtime.timing.snippet import function_of, names_in

CPU = torch.device("cpu")


def options_of(*given):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    snippet.add_options(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("x + 1", 3),
        ("y = x * 3; y", 6),
        ("\n  if x:\n      y = 5\n  y\n", 5),
        ("y = 1", None),
        ("sum(x * each for each in [1, 2])", 6),
    ],
)
def test_a_function_returns_what_its_last_line_evaluates_to(code, value):
    namespace = {"x": 2}
    assert function_of(code, namespace, what="it")() == value
    assert namespace == {"x": 2}


def test_a_variable_of_the_setup_is_rebound_as_in_timeit():
    namespace = {"n": 0}
    function = function_of("n += 1", namespace, what="it")
    for _ in range(5):
        function()
    result: list[int] = []
    timeit.timeit("n += 1; seen.append(n)", "n = 0", number=5, globals={"seen": result})
    assert namespace["n"] == result[-1]


def test_copies_are_made_of_the_tensors_that_a_statement_uses():
    namespace = {"x": torch.ones(4), "unused": torch.ones(4)}
    candidate = Candidate(function_of("torch.relu(x)", namespace | {"torch": torch}, what="it"))
    original = Original(candidate, CPU)
    assert not original.left_out
    assert len(original.storages) == 1
    copied: Any = make_copies(original, 1, "random").candidates[0].fn
    namespace["x"].fill_(-1)
    assert copied().tolist() == [1, 1, 1, 1]


def test_no_copies_of_tensors_that_a_statement_replaces():
    candidate = Candidate(function_of("x = x + 1", {"x": torch.ones(4)}, what="it"))
    assert Original(candidate, CPU).left_out == ("global 'x'",)


def test_setup_and_statement_share_variables_and_a_device():
    options = options_of("-s", "x = torch.ones(3)", "-s", "y = 2 * x", "--warmup", "2")
    namespace = {"torch": torch}
    snippet.set_up(options, namespace, torch.device("meta"))
    assert namespace["y"].device.type == "meta"
    assert torch.ones(1).device == CPU


def test_a_statement_is_timed_as_its_options_say():
    options = options_of(
        *("--setup", "calls, resets = [], []", "--before", "resets.append(1)", "--warmup", "2"),
        *("--stop", "count", "--max-samples", "3", "--min-samples", "3", "--name", "append"),
        "--no-exclusive",
    )
    namespace: dict[str, Any] = {}
    snippet.set_up(options, namespace)
    measured = snippet.time_statement("calls.append(1)", options, namespace)
    assert measured.name == "append"
    assert len(measured.seconds) == 3
    assert measured.warmup_requested == 2
    assert not measured.exclusive.requested
    assert len(namespace["resets"]) == len(namespace["calls"])


def test_a_result_is_called_as_its_statement():
    options = options_of("--max-samples", "1", "--min-samples", "1", "--warmup", "0")
    assert snippet.time_statement("x = 1\n\nx + 1", options, {}).name == "x = 1; x + 1"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = ", "line 1 of the statement is not valid Python (invalid syntax): x ="),
        ("1\nreturn 2", "line 2 of the statement is not valid Python ('return' outside function)"),
        ("yield 1", "line 1 of the statement is not valid Python ('yield' outside function)"),
        ("from torch import *", "line 1 of the statement is not valid Python (import * only"),
        (" \n", "the statement is empty; give Python code, such as 'torch.relu(x)'"),
        ("x = 1\ny", "line 2 of the statement raised NameError: name 'y' is not defined"),
        ("exit()", "line 1 of the statement raised SystemExit"),
        ("def f():\n  return 1 / 0\nf()", "line 2 of the statement raised ZeroDivisionError"),
    ],
)
def test_errors_name_the_line(code, says):
    options = options_of("--device", "cpu")
    with pytest.raises(InputError) as error, snippet.prepared(options) as (namespace, _):
        snippet.time_statement(code, options, namespace)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--tolerance", "inf"], "--tolerance: got 'inf', but it must be a number"),
        (["--min-samples", "-1"], "--min-samples: got '-1', but it must be a whole number"),
        (["--pin", "1.5"], "--pin: got '1.5', but it must be a whole number"),
        (["--warmup", "long"], "--warmup: got 'long', but it must be a number"),
        (["--method", "guess"], "--method: invalid choice: 'guess'"),
    ],
)
def test_options_are_read_as_what_they_are(capsys, given, says):
    with pytest.raises(SystemExit):
        options_of(*given)
    assert says in capsys.readouterr().err


def test_an_option_outside_of_its_range_is_found_before_the_setup_runs():
    with pytest.raises(InputError, match="timeout must be a positive number"):
        snippet.set_up(options_of("--timeout", "0", "-s", "1 / 0"), {})


def test_the_names_that_statements_refer_to_are_found() -> None:
    assert names_in("y = f(x.z)\ndef g(): return w", what="it") == {"y", "f", "x", "w"}
    with pytest.raises(InputError, match="line 1 of it is not valid Python"):
        names_in("(", what="it")
