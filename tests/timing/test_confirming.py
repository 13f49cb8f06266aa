"""A comparison is confirmed by a fresh process."""

from __future__ import annotations

import json
import operator
import time
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime import Candidate
from convtime.cli import main
from convtime.timing import confirming
from convtime.timing.comparison import Comparison
from tests.helpers.measurements import on_cpu

QUICK: dict[str, Any] = {"device": "cpu", "budget": 0.2, "check": None, "interference": False}


@pytest.mark.timing
def test_a_fresh_process_confirms_a_verdict() -> None:
    naps = [Candidate(time.sleep, each, name=name) for name, each in (("a", 2e-3), ("b", 4e-3))]
    compared = convtime.compare(naps, confirm=True, **QUICK)
    assert list(compared.confirmation) == ["b"]
    assert compared.confirmation["b"].value == pytest.approx(2, rel=0.2)
    assert compared.verdict("b") == "slower"
    assert convtime.Comparison.from_dict(compared.to_dict()) == compared


def test_what_cannot_be_sent_is_refused_before_it_is_timed() -> None:
    calls: list[int] = []
    candidates = [
        Candidate(lambda: calls.append(1), name="a"),
        Candidate(operator.add, 1, 2, name="b"),
    ]
    with pytest.raises(ValueError, match="'a' cannot be sent .* in a module"):
        convtime.compare(candidates, confirm=True, **QUICK)
    assert calls == []


@pytest.mark.thorough
def test_a_fresh_process_that_fails_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"fresh process .* failed: .*Unpickling|EOF"):
        confirming.confirm(b"", 1.0)


def test_ratios_are_read_from_the_file_of_the_fresh_process(tmp_path: Path) -> None:
    measurements = {name: on_cpu((each,) * 30) for name, each in (("a", 2.0), ("b", 3.0))}
    file = tmp_path / "comparison.json"
    file.write_text(Comparison(measurements, baseline="b").to_json(), encoding="utf-8")
    (ratio,) = confirming.ratios_in(file).values()
    assert ratio.value == pytest.approx(2 / 3)


@pytest.mark.timing
def test_the_command_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    statements = ["time.sleep(0.002)", "time.sleep(0.004)"]
    options = ["--setup", "import time", "--budget", "0.2", "--confirm", "--json", "-"]
    assert main(["compare", *statements, *options]) == 0
    compared = convtime.Comparison.from_dict(json.loads(capsys.readouterr().out))
    assert compared.confirmation[statements[1]].value == pytest.approx(2, rel=0.2)
