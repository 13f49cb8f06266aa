"""A comparison is confirmed by a fresh process."""

from __future__ import annotations

import json
import operator
import time
from typing import Any

import pytest

import convtime
from convtime import Candidate, Ratio
from convtime.cli import main
from convtime.timing import confirming
from convtime.timing.comparison import Comparison
from tests.helpers.measurements import on_cpu

QUICK: dict[str, Any] = {"device": "cpu", "budget": 0.2, "check": None, "interference": False}


def naps(**options: Any) -> convtime.Comparison:
    candidates = [Candidate(time.sleep, seconds, name=name) for name, seconds in _NAPS.items()]
    return convtime.compare(candidates, **QUICK, **options)


_NAPS = {"short": 0.002, "long": 0.004}


@pytest.mark.timing
def test_a_fresh_process_confirms_what_is_so_everywhere() -> None:
    compared = naps(confirm=True)
    assert list(compared.confirmation) == ["long"]
    assert compared.confirmation["long"].value == pytest.approx(2, rel=0.2)
    assert compared.verdict("long") == "slower"
    assert convtime.Comparison.from_dict(compared.to_dict()) == compared


def test_another_verdict_of_a_fresh_process_makes_this_one_uncertain() -> None:
    measurements = {name: on_cpu((seconds,) * 30, name=name) for name, seconds in _NAPS.items()}
    compared = Comparison(measurements, confirmation={"long": Ratio(1.0, 0.999, 1.001)})
    judged = compared.judge("long")
    assert (judged.verdict, judged.reason) == ("uncertain", "not-confirmed")
    assert "same in a fresh one" in judged.sentence
    assert compared.verdict("short", "long") == "faster"  # which was not asked of it


def test_what_cannot_be_sent_is_refused_before_it_is_timed() -> None:
    calls: list[int] = []
    candidates = [
        Candidate(lambda: calls.append(1), name="a"),
        Candidate(operator.add, 1, 2, name="b"),
    ]
    with pytest.raises(ValueError, match="'a' cannot be sent .* in a module"):
        convtime.compare(candidates, confirm=True, **QUICK)
    assert calls == []
    with pytest.raises(ValueError, match="confirm must be True or False, got 1"):
        convtime.compare(candidates, confirm=1, **QUICK)  # type: ignore[call-overload]


def test_a_fresh_process_that_fails_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"fresh process .* failed: .*Unpickling|EOF"):
        confirming.confirm(b"", 1.0)


@pytest.mark.timing
def test_the_command_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    statements = ["time.sleep(0.002)", "time.sleep(0.004)"]
    options = ["--setup", "import time", "--budget", "0.2", "--confirm", "--json", "-"]
    assert main(["compare", *statements, *options]) == 0
    compared = convtime.Comparison.from_dict(json.loads(capsys.readouterr().out))
    assert compared.confirmation[statements[1]].value == pytest.approx(2, rel=0.2)
