"""`convtime show` and `convtime compare-files`: what commands have written, and other tools."""

import dataclasses
import json
from pathlib import Path

import pytest

import convtime
from convtime import Comparison, cli
from convtime.core import codec
from convtime.regression.baseline import Baseline
from convtime.regression.noise import LEAST_PROCESSES

QUICK = ["--device", "cpu", "--stop", "count", "--max-samples", "40", "--warmup", "1"]


@pytest.fixture(scope="module")
def measured():
    return convtime.time_op(
        lambda: None, name="nothing", stop="count", max_samples=40, device="cpu"
    )


def slowed(measured, factor, name=None):
    seconds = tuple(factor * (1e-3 + 1e-9 * index) for index in range(len(measured.seconds)))
    return dataclasses.replace(
        measured, name=name or measured.name, seconds=seconds, batches=tuple(range(len(seconds)))
    )


def run_of(path, *measurements):
    convtime.write_measurements({each.name: each for each in measurements}, path)
    return str(path)


def error_of(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("convtime: error: ")


def test_show_says_what_time_said(tmp_path, capsys):
    path = str(tmp_path / "a.json")
    assert cli.main(["time", "1 + 1", *QUICK, "--json", path]) == 0
    said = capsys.readouterr().out
    assert cli.main(["show", path]) == 0
    assert capsys.readouterr().out == said
    assert cli.main(["show", path, "--verbose"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_a_file_does_not_differ_from_itself(measured, tmp_path, capsys):
    dirty = measured.provenance | {"git": {"commit": "a" * 40, "dirty": True}}
    run = dataclasses.replace(slowed(measured, 1), provenance=dirty)
    path = run_of(tmp_path / "a.json", run, dataclasses.replace(run, name="another"))
    assert cli.main(["compare-files", path, path]) == 0
    said = capsys.readouterr().out
    assert "uncommitted" not in said
    assert "the code" not in said
    later = dataclasses.replace(slowed(measured, 1.001), provenance=dirty)
    assert cli.main(["compare-files", path, run_of(tmp_path / "b.json", later)]) == 0
    assert "uncommitted changes" in capsys.readouterr().out


def test_show_says_what_compare_said(tmp_path, capsys):
    path = str(tmp_path / "a.json")
    assert cli.main(["compare", "1 + 1", "-n", "<b>=2 + 2", *QUICK, "--json", path]) == 0
    said = capsys.readouterr().out
    assert cli.main(["show", path]) == 0
    assert capsys.readouterr().out == said
    assert cli.main(["show", path, "--json", "-"]) == 0
    again = Comparison.from_dict(json.loads(capsys.readouterr().out))
    assert list(again.measurements) == ["1 + 1", "<b>"]


def test_show_makes_another_tools_file_convtimes(tmp_path, capsys, measured):
    theirs, ours = tmp_path / "theirs.csv", tmp_path / "ours.json"
    convtime.write_measurements(measured, theirs)
    assert cli.main(["show", str(theirs), "--json", str(ours)]) == 0
    document = json.loads(ours.read_text())
    assert document["type"] == "Measurements"
    (entry,) = document["measurements"].values()
    assert tuple(entry["seconds"]) == measured.seconds


def test_show_lists_the_layers_of_convolutions(tmp_path, capsys):
    path = str(tmp_path / "a.json")
    problem = "conv1d:n1c2w9k4s3"
    given = ["conv", problem, "--backward", "--device", "cpu", "--budget", "0.02", "--json", path]
    assert cli.main(given) == 0
    capsys.readouterr()
    assert cli.main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [f"problem 1 {which}" for which in ("forward", "backward")]
    for line, title in zip(lines, (each for each in titles for _ in range(2)), strict=True):
        assert title in line
    document = json.loads((tmp_path / "a.json").read_text())
    for name, seconds in (("a.json", 1e-3), ("b.json", 1.5e-3)):
        for row in document["rows"]:
            for side in ("pytorch", "convtime"):
                count = len(row[side]["seconds"])
                row[side]["seconds"] = [seconds + 1e-9 * (n % 7) for n in range(count)]
        (tmp_path / name).write_text(codec.to_json(document))
    given = ["compare-files", path, str(tmp_path / "b.json"), "--fail-on", "slower"]
    assert cli.main(given) == 1
    assert f"again: convtime conv {problem}:float32:nchw --backward" in capsys.readouterr().out


def test_compare_files_finds_what_is_slower_and_says_so_everywhere(tmp_path, capsys, measured):
    before = run_of(tmp_path / "a.json", slowed(measured, 1, "same"), slowed(measured, 1, "slow"))
    after = run_of(tmp_path / "b.json", slowed(measured, 1, "same"), slowed(measured, 1.2, "slow"))
    given = ["compare-files", before, after]
    assert cli.main(given) == 0
    assert cli.main([*given, "--fail-on", "faster,missing"]) == 0
    assert cli.main([*given, "--margin", "0.5", "--fail-on", "slower"]) == 0
    capsys.readouterr()
    outputs = ["--json", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md")]
    assert cli.main([*given, "--fail-on", "slower,faster", *outputs]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "exits with 1: slow (slower)"
    changes = {
        each["name"]: each for each in json.loads((tmp_path / "c.json").read_text())["changes"]
    }
    assert changes["slow"]["verdict"] == "slower"
    assert changes["slow"]["ratio"]["value"] == pytest.approx(1.2, rel=1e-6)
    assert "| slower |" in (tmp_path / "c.md").read_text()


def test_compare_files_judges_beside_a_baseline_where_that_is_asked(tmp_path, measured):
    def run(name, factor):
        call = slowed(measured, factor, "call")
        call = dataclasses.replace(call, provenance=call.provenance | {"baseline": "baseline"})
        return run_of(tmp_path / name, slowed(measured, factor, "baseline"), call)

    given = ["compare-files", run("a.json", 1), run("b.json", 1.2), "--fail-on", "slower"]
    assert cli.main(given) == 1
    assert cli.main([*given, "--relative"]) == 0


def test_compare_files_of_a_measurement_each_does_not_ask_for_its_name(tmp_path, capsys, measured):
    before = run_of(tmp_path / "a.json", slowed(measured, 1, "old"))
    after = run_of(tmp_path / "b.json", slowed(measured, 0.5, "new"))
    assert cli.main(["compare-files", before, after, "--fail-on", "faster"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "exits with 1: old → new (faster)"


def test_compare_files_uses_the_repeats_and_margins_of_saved_runs(tmp_path, capsys, measured):
    def saved(name, title, *factors):
        runs = [{title: slowed(measured, factor, title)} for factor in factors]
        run = Baseline.of(runs, {title: title}, calibrated=len(factors) >= LEAST_PROCESSES)
        run.save(tmp_path / name)
        return str(tmp_path / name)

    fail = ["--fail-on", "slower,faster,uncertain"]
    quiet = saved("quiet.json", "one", *(1 + 1e-4 * index for index in range(10)))
    for title in ("one", "renamed"):
        given = ["compare-files", quiet, saved("later.json", title, 1.02), *fail]
        assert cli.main([*given, "--margin", "0.03"]) == 0
        capsys.readouterr()
        assert cli.main(given) == 1
        assert "(slower)" in capsys.readouterr().out
    under_load = saved("load.json", "one", 1.4, 1, 1)
    assert cli.main(["compare-files", under_load, saved("later.json", "one", 1), *fail]) == 0


def test_instructions_that_are_not_judged_are_said_and_have_the_code_for_it(
    tmp_path, capsys, measured
):
    path = run_of(tmp_path / "a.json", dataclasses.replace(slowed(measured, 1, "one"), host=()))
    given = ["compare-files", path, path, "--fail-on", "more-instructions"]
    assert cli.main(given) == 0
    assert "not judged for one" in capsys.readouterr().out
    assert cli.main([*given, "--uncertain", "125"]) == 125


def test_uncertain_has_the_code_that_it_is_given(tmp_path, measured):
    few = dataclasses.replace(slowed(measured, 1), seconds=(1e-3, 2e-3), batches=(0, 1))
    later = dataclasses.replace(few, seconds=(1e-3, 2.1e-3))
    given = ["compare-files", run_of(tmp_path / "a.json", few), run_of(tmp_path / "b.json", later)]
    assert cli.main([*given, "--uncertain", "125"]) == 125
    assert cli.main([*given, "--uncertain", "125", "--fail-on", "uncertain"]) == 1


def test_bad_files_are_one_sentence(tmp_path, capsys, measured):
    good = run_of(tmp_path / "good.json", measured, slowed(measured, 1, "other"))
    strange = run_of(tmp_path / "b.json", *(slowed(measured, 1, name) for name in "abcd"))
    (tmp_path / "half.json").write_text('{"schema": "5.0", "seco')
    for arguments, says in (
        (["show", str(tmp_path / "none.json")], "none.json: cannot be read (No such file"),
        (["show", str(tmp_path / "half.json")], "half.json: is no"),
        (["show", good, "--json", "none/out.json"], "none/out.json: cannot be written"),
        (["compare-files", good, good, "--json", good], "must name different files"),
        (["compare-files", good, good, *("--json", "o", "--markdown", "./o")], "must name differ"),
        (["compare-files", good], "the following arguments are required: AFTER"),
        (["compare-files", good, strange], "the second 'a', 'b', 'c' and 1 more"),
        (["compare-files", good, good, "--margin", "2"], "margin must be a share"),
        (["compare-files", good, good, "--margin", "x"], "--margin: got 'x', but it must be"),
        (["compare-files", good, good, "--fail-on", "different"], "--fail-on: got 'different'"),
        (["compare-files", good, good, "--same-gpu", "any"], "--same-gpu: invalid choice: 'any'"),
    ):
        assert cli.main(arguments) == 2
        assert says in error_of(capsys)


def test_a_result_never_replaces_what_it_is_made_from(measured, tmp_path, capsys):
    csv = run_of(tmp_path / "own.csv", measured)
    json_file = run_of(tmp_path / "own.json", measured)
    for arguments, input_name in (
        (["show", csv, "--json", csv], "FILE"),
        (["show", json_file, "--json", json_file], "FILE"),
        (["diagnose", "1", "--against", json_file, "--json", json_file], "--against"),
    ):
        content = Path(arguments[-1]).read_text()
        assert cli.main(arguments) == 2
        assert f"{input_name} and --json must name different files" in error_of(capsys)
        assert Path(arguments[-1]).read_text() == content


@pytest.mark.parametrize("command", [["time", "1"], ["config"], ["sweep", "n", "--axis", "n=1"]])
def test_json_is_not_written_to_what_is_read_as_csv(tmp_path, capsys, command):
    file = tmp_path / "x.CSV"
    assert cli.main([*command, "--json", str(file)]) == 2
    assert "--json must not name a .csv file" in error_of(capsys)
    assert not file.exists()
