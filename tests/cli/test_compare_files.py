"""`convtime compare BEFORE AFTER`: the changes from one file of results to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import convtime
from convtime import Measurement, cli
from convtime.regression.baseline import Baseline
from convtime.regression.noise import LEAST_PROCESSES
from tests.cli.conftest import Judged
from tests.helpers.commands import COUNTED, ON_CPU, Capture, error_of
from tests.helpers.measurements import on_cpu


def slowed(factor: float, name: str = "one", **changes: Any) -> Measurement:
    seconds = tuple(factor * (1e-3 + 1e-9 * index) for index in range(40))
    return on_cpu(seconds, name=name, **changes)


def run_of(path: Path, *measurements: Measurement) -> str:
    convtime.write_measurements({each.name: each for each in measurements}, path)
    return str(path)


def test_what_is_slower_is_found_and_said_everywhere(tmp_path: Path, capsys: Capture) -> None:
    before = run_of(tmp_path / "a.json", slowed(1, "same"), slowed(1, "slow"))
    after = run_of(tmp_path / "b.json", slowed(1, "same"), slowed(1.2, "slow"))
    given = ["compare", before, after]
    assert cli.main(given) == 0
    assert cli.main([*given, "--fail-on", "faster,missing"]) == 0
    assert cli.main([*given, "--margin", "0.5", "--fail-on", "slower"]) == 0
    capsys.readouterr()
    outputs = ["--json", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md")]
    assert cli.main([*given, "--fail-on", "slower,faster", *outputs]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "exits with 1: slow (slower)"
    document = json.loads((tmp_path / "c.json").read_text())
    changes = {each["name"]: each for each in document["changes"]}
    assert (changes["same"]["verdict"], changes["slow"]["verdict"]) == ("same", "slower")
    assert changes["slow"]["ratio"]["value"] == pytest.approx(1.2, rel=1e-6)
    assert "| slower |" in (tmp_path / "c.md").read_text()


def test_code_that_was_changed_is_said_unless_a_file_is_its_own(
    tmp_path: Path, capsys: Capture
) -> None:
    dirty = {"git": {"commit": "a" * 40, "dirty": True}, "cpu": "x"}
    path = run_of(tmp_path / "a.json", slowed(1, "old", provenance=dirty))
    # Of one measurement each, which need no name in common.
    later = run_of(tmp_path / "b.json", slowed(0.5, "new", provenance=dirty))
    for given, code, says in (([path, path], 0, False), ([path, later], 1, True)):
        assert cli.main(["compare", *given, "--fail-on", "faster"]) == code
        said = capsys.readouterr().out
        assert ("uncommitted changes" in said) == says
        assert said.endswith("\nexits with 1: old → new (faster)\n") == says


def test_layers_are_compared_and_the_command_for_one_is_said(
    tmp_path: Path, capsys: Capture, judged: Judged
) -> None:
    problem, paths = "conv1d:n1c2w9k4s3", [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, factor in zip(paths, (1, 1.5), strict=True):
        judged(pytorch=slowed(factor), convtime=slowed(factor))
        assert cli.main(["conv", problem, "--backward", *ON_CPU, "--json", path]) == 0
    capsys.readouterr()
    assert cli.main(["compare", *paths, "--fail-on", "slower"]) == 1
    assert f"again: convtime conv {problem}:float32:nchw --backward" in capsys.readouterr().out


def test_a_run_is_judged_beside_a_baseline_where_that_is_asked(tmp_path: Path) -> None:
    def run(name: str, factor: float) -> str:
        call = slowed(factor, "call", provenance={"baseline": "baseline", "cpu": "x"})
        return run_of(tmp_path / name, slowed(factor, "baseline"), call)

    given = ["compare", run("a.json", 1), run("b.json", 1.2), "--fail-on", "slower"]
    assert cli.main(given) == 1
    assert cli.main([*given, "--relative"]) == 0


def test_repeats_and_margins_of_saved_runs_count(tmp_path: Path, capsys: Capture) -> None:
    def saved(name: str, title: str, *factors: float) -> str:
        runs = [{title: slowed(factor, title)} for factor in factors]
        run = Baseline.of(runs, {title: title}, calibrated=len(factors) >= LEAST_PROCESSES)
        run.save(tmp_path / name)
        return str(tmp_path / name)

    quiet = saved("quiet.json", "one", *(1 + 1e-4 * index for index in range(10)))
    given = ["compare", quiet, saved("later.json", "one", 1.02), "--fail-on", "slower"]
    assert cli.main([*given, "--margin", "0.03"]) == 0
    capsys.readouterr()
    assert cli.main(given) == 1
    assert "(slower)" in capsys.readouterr().out


def test_what_is_uncertain_or_not_judged_has_the_code_for_it(
    tmp_path: Path, capsys: Capture
) -> None:
    few = [on_cpu(seconds, name="one") for seconds in ((1e-3, 2e-3), (1e-3, 2.1e-3))]
    paths = [run_of(tmp_path / f"{place}.json", each) for place, each in enumerate(few)]
    given = ["compare", *paths, "--uncertain", "125"]
    assert cli.main(given) == 125
    assert cli.main([*given, "--fail-on", "uncertain"]) == 1
    capsys.readouterr()
    path = run_of(tmp_path / "c.json", slowed(1, host=()))
    given = ["compare", path, path, "--fail-on", "more-instructions"]
    assert cli.main(given) == 0
    assert "not judged for one" in capsys.readouterr().out
    assert cli.main([*given, "--uncertain", "125"]) == 125


def test_statements_are_no_files_whatever_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("1", "2"):
        (tmp_path / name).write_text("a note, not a result")
    assert cli.main(["compare", "1", "2", "--no-interference", *COUNTED]) == 0
    assert "1" in capsys.readouterr().out
    run_of(tmp_path / "a.json", slowed(1))
    (tmp_path / "a.json").rename(tmp_path / "1")
    assert cli.main(["compare", "-n", "one=1", "2", "--no-interference", *COUNTED]) == 0


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    good = run_of(tmp_path / "good.json", slowed(1), slowed(1, "other"))
    strange = run_of(tmp_path / "b.json", *(slowed(1, name) for name in "abcd"))
    for arguments, says in (
        ([good], f"two files of results; of its arguments, these are files of results: {good}"),
        ([good, "1 + 1"], "compare takes either statements or two files of results"),
        ([good, good, good], "compare takes either statements or two files of results"),
        ([good, good, "--backward"], "--backward requires statements, got two files of results"),
        ([good, good, "--cache", "warm"], "--cache requires statements, got two files"),
        (["1", "2", "--relative"], "--relative requires two files of results, got statements"),
        (["1", "2", "--fail-on", "new"], "--fail-on new requires two files of results"),
        ([good, strange], "the second 'a', 'b', 'c' and 1 more"),
        ([good, good, "--margin", "2"], "margin must be a share"),
        ([good, good, "--margin", "x"], "--margin: got 'x', but it must be"),
        ([good, good, "--fail-on", "different"], "--fail-on different requires statements"),
        ([good, good, "--same-gpu", "any"], "--same-gpu: invalid choice: 'any'"),
    ):
        assert cli.main(["compare", *arguments]) == 2
        assert says in error_of(capsys)
