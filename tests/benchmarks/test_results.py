"""The benchmarks' result files, without running a benchmark on a GPU."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import check_results
import compare_resnet50
import pytest
import results

from tests.helpers import BENCHMARKS

NAME = "compare_resnet50"
FACTS = {"gpu": "G", "driver": "1", "cuda": "13.0", "torch": "2.15", "cudnn": "9.1", "cpu": "C"}
GOALS = results.load_goals()


def row(layer, ours=1e-5, pytorch=1e-5, dtype="float32", layout="nchw", identical=True):
    return {
        "layer": {"names": [layer]},
        "label": "1×2×3×4 → 5, 6×7",
        "dtype": dtype,
        "layout": layout,
        "pytorch": {"seconds": [pytorch, 2 * pytorch, 4 * pytorch]},
        "convtime": {"seconds": [ours, 2 * ours, 4 * ours]},
        "ratio": {"value": ours / pytorch, "low": 0.9, "high": 1.1, "confidence": 0.95},
        "bit_identical": identical,
    }


def options(directory, shard=None, commit="abc"):
    return argparse.Namespace(output=directory, shard=shard, commit=commit)


def open_file(directory, facts=FACTS, **changes):
    return results.ResultFile(
        NAME, compare_resnet50.summarise, options(directory, **changes), facts
    )


def complete(directory):
    """A result file that meets every goal."""
    file = open_file(directory)
    for dtype, layout in compare_resnet50.CONFIGURATIONS:
        for index in range(23):
            file.add(f"{dtype} {index}", row(f"layer{index}", dtype=dtype, layout=layout))
    return file.path


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [
        (0.97, ">= 0.97", True),
        (0.9699, ">= 0.97", False),
        (1.03, "<= 1.03", True),
        (1.0301, "<= 1.03", False),
        (0, "== 0", True),
        (1, "== 0", False),
        (1, "> 1", False),
        (-2, "< -1.5", True),
    ],
)
def test_goals(value, goal, met):
    assert results.meets(value, goal) is met


@pytest.mark.parametrize("goal", ["0.97", "=> 1", ">= one", ">= 1 or so", "", ">= 1.", ">= nan"])
def test_goals_that_are_none(goal):
    with pytest.raises(ValueError, match="must be a relation and a number"):
        results.meets(1, goal)


def test_every_goal_of_the_project_can_be_parsed():
    assert "_" not in GOALS
    for limits in GOALS.values():
        for goal in limits.values():
            results.meets(1.0, goal)


def test_a_value_that_the_rows_do_not_yield_is_a_miss():
    goals = {"there": ">= 1", "absent": ">= 0"}
    there, absent = results.make_summary([{}], lambda rows: {"there": 2, "more": 3}, goals)
    assert there == {"name": "there", "value": 2, "goal": ">= 1", "met": True}
    assert absent == {"name": "absent", "value": None, "goal": ">= 0", "met": False}
    nothing = results.make_summary([], max, goals)  # type: ignore[arg-type]
    assert not any(entry["met"] for entry in nothing)


def test_summary_of_compare_resnet50():
    rows = [
        row("a", ours=1.02e-5),
        row("a", ours=0.98e-5, dtype="float16", layout="nhwc"),
        row("b", identical=False),  # in one of the configurations only
        row("b"),
    ]
    # The ratio is of the rounds: medians alone would be 1 here.
    rows[3]["convtime"]["seconds"] = [4.4e-5, 2e-5, 1.1e-5]
    rows[3]["pytorch"]["seconds"] = [4e-5, 1e-5, 2e-5]
    summary = compare_resnet50.summarise(rows)
    assert summary == {
        "layers": 1,
        "fraction_bit_identical": 0.75,
        "time_ratio_min": pytest.approx(0.98),
        "time_ratio_max": pytest.approx(1.1),
    }
    assert set(summary) == set(GOALS[NAME])


def test_file_has_the_fields_and_resumes(tmp_path):
    file = open_file(tmp_path)
    cases = {"a": 1, "b": 2, "c": 3}
    assert file.pending(cases) == cases
    file.add("b", row("b"))
    document = json.loads((tmp_path / f"{NAME}.json").read_text())
    assert document["schema"] == 1
    assert document["provenance"] == {
        key: FACTS.get(key, "abc") for key in ("gpu", "driver", "cuda", "torch", "cudnn", "commit")
    }
    assert [entry["name"] for entry in document["summary"]] == list(GOALS[NAME])

    again = open_file(tmp_path)
    assert again.pending(cases) == {"a": 1, "c": 3}
    again.add("a", row("a"))
    assert [row["key"] for row in open_file(tmp_path).rows] == ["b", "a"]


def test_the_recorded_command_leaves_out_where_and_which(tmp_path, monkeypatch):
    told = ["--device", "cuda:1", "--budget", "0.5"]
    pieces = ["--seconds", "60", "--resume", "/root/old.json", "--shard", "1/1"]
    pieces += ["--parts", "match", "host"]
    command = ["/some/where/bench.py", "--output", "/root/out", *told, "--commit=abc", *pieces]
    monkeypatch.setattr(sys, "argv", command)
    file = open_file(tmp_path)
    file.add("a", row("a"))
    assert json.loads(file.path.read_text())["command"] == f"bench.py {' '.join(told)}"
    with pytest.raises(SystemExit):  # an abbreviation would be recorded
        results.argument_parser("").parse_args(["--out", "/root/out"])


def test_several_rows_are_saved_at_once(tmp_path):
    file = open_file(tmp_path)
    file.add_all({"a": row("a"), "b": row("b")})
    saved = json.loads(file.path.read_text())["rows"]
    assert [row["key"] for row in saved] == ["a", "b"]
    assert file.pending({"a": 1, "b": 2, "c": 3}) == {"c": 3}


@pytest.mark.parametrize("change", [{"facts": FACTS | {"driver": "2"}}, {"commit": "def"}])
def test_rows_of_another_environment_are_not_resumed(tmp_path, capsys, change):
    open_file(tmp_path).add("a", row("a"))
    file = open_file(tmp_path, **change)
    assert file.pending({"a": 1}) == {"a": 1}
    assert "starting anew" in capsys.readouterr().out


def test_rows_of_another_command_are_not_resumed(tmp_path, capsys, monkeypatch):
    def open_as(*arguments):
        monkeypatch.setattr(sys, "argv", [f"{NAME}.py", *arguments])
        return open_file(tmp_path)

    open_as("--batch", "1").add("a", row("a"))
    assert open_as("--batch", "1", "--seconds", "9").pending({"a": 1}) == {}
    assert "starting anew" not in capsys.readouterr().out
    file = open_as("--batch", "2")
    assert file.pending({"a": 1}) == {"a": 1}
    said = f"was made by '{NAME}.py --batch 1', not by '{NAME}.py --batch 2'; starting anew"
    assert said in capsys.readouterr().out
    file.add("b", row("b"))
    document = json.loads(file.path.read_text())
    assert [row["key"] for row in document["rows"]] == ["b"]
    assert document["command"] == f"{NAME}.py --batch 2"


def test_shards_take_every_case_once_and_merge_in_order(tmp_path):
    cases = {f"case{index}": index for index in range(7)}
    for number in (3, 1, 2):
        file = open_file(tmp_path, shard=(number, 3))
        for key in file.pending(cases):
            file.add(key, row(key))
    assert not (tmp_path / f"{NAME}.json").exists()
    path = results.merge(NAME, compare_resnet50.summarise, tmp_path)
    document = json.loads(path.read_text())
    assert [row["key"] for row in document["rows"]] == list(cases)
    assert not list(check_results.check_file(path, GOALS))


def test_merge_refuses_missing_mixed_and_foreign_shards(tmp_path):
    def merge():
        return results.merge(NAME, compare_resnet50.summarise, tmp_path)

    with pytest.raises(ValueError, match="shards of nothing"):
        merge()
    open_file(tmp_path, shard=(1, 3)).add("a", row("a"))
    open_file(tmp_path, shard=(3, 3)).add("c", row("c"))
    with pytest.raises(ValueError, match=f"lacks shards of {NAME}: 2/3"):
        merge()
    open_file(tmp_path, shard=(2, 3), commit="other").add("b", row("b"))
    with pytest.raises(
        ValueError, match=r"shard 2/3 of .* has commit 'other', but shard 1/3 'abc'"
    ):
        merge()
    open_file(tmp_path, shard=(1, 2)).add("a", row("a"))
    with pytest.raises(ValueError, match=r"in shards of \[2, 3\]"):
        merge()


def test_merge_refuses_shards_of_another_command(tmp_path, monkeypatch):
    for number, batch in ((1, "64"), (2, "1")):
        monkeypatch.setattr(sys, "argv", [f"{NAME}.py", "--shard", f"{number}/2", "--batch", batch])
        open_file(tmp_path, shard=(number, 2)).add(batch, row("a"))
    with pytest.raises(ValueError, match="shard 2/2 of .* was made by '.* 1', but .* by '.* 64'"):
        results.merge(NAME, compare_resnet50.summarise, tmp_path)


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ((2, 2, 2), None),
        ((3, 2, 2), None),
        ((3, 3, 2), None),
        ((3, 2, 3), "2/3 has 2 rows of 3 or more"),
        ((1, 2, 2), "1/3 has 1 rows of 2 or more"),
        ((4, 4, 1), "3/3 has 1 rows of 3 or more"),
        ((1, 4, 1), "1/3 has 1 rows of 4 or more, 3/3 has 1 rows of 3 or more"),
    ],
)
def test_merge_refuses_incomplete_shards(tmp_path, lengths, says):
    for number, length in enumerate(lengths, start=1):
        rows = {f"{number}.{index}": row("a") for index in range(length)}
        open_file(tmp_path, shard=(number, 3)).add_all(rows)
    if says is None:
        results.merge(NAME, compare_resnet50.summarise, tmp_path)
        return
    with pytest.raises(ValueError, match="incomplete and must be run again") as error:
        results.merge(NAME, compare_resnet50.summarise, tmp_path)
    assert str(error.value).endswith(f": {says}")
    assert not (tmp_path / f"{NAME}.json").exists()


def test_a_file_is_judged_anew_by_other_goals(tmp_path, monkeypatch):
    path = complete(tmp_path)
    before = json.loads(path.read_text())
    goals = {"layers": ">= 24", "not_measured": ">= 1"}
    monkeypatch.setattr(results, "load_goals", lambda: {NAME: goals})
    assert results.judge(NAME, compare_resnet50.summarise, tmp_path) == path
    after = json.loads(path.read_text())
    assert after.pop("summary") == [
        {"name": "layers", "value": 23, "goal": ">= 24", "met": False},
        {"name": "not_measured", "value": None, "goal": ">= 1", "met": False},
    ]
    assert after == {name: value for name, value in before.items() if name != "summary"}
    path.unlink()
    with pytest.raises(ValueError, match=f"has no {NAME}.json; run the benchmark first"):
        results.judge(NAME, compare_resnet50.summarise, tmp_path)


def test_the_command_line_judges_a_file(tmp_path):
    path = complete(tmp_path)
    document = json.loads(path.read_text())
    document["summary"] = []
    path.write_text(json.dumps(document))
    command = [sys.executable, BENCHMARKS / "results.py", "judge", NAME, "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "met  layers = 23" in done.stdout
    assert not list(check_results.check_file(path, GOALS))


def test_results_need_a_script(tmp_path):
    path = complete(tmp_path).rename(tmp_path / "planned.json")
    path.write_text(path.read_text().replace(NAME, "planned"))
    errors = check_results.check_file(path, {"planned": {}})
    assert list(errors) == ["there is no script planned.py to sum its rows up"]


@pytest.fixture
def run_gpu(tmp_path):
    """Runs run_gpu.sh in a repository of two tests, and two benchmarks that say that they ran."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    benchmarks, tests, target = (tmp_path / name for name in ("benchmarks", "tests", "target"))
    for folder in (benchmarks, tests, target / "convtime"):
        folder.mkdir(parents=True)
    for module in ("__init__", "__main__"):
        (target / "convtime" / f"{module}.py").write_text("")
    for name in ("run_gpu.sh", "results.py"):
        shutil.copy(BENCHMARKS / name, benchmarks)
    (benchmarks / "goals.json").write_text('{"one": {}, "packaging": {}, "planned": {}}')
    for script in ("one.py", "packaging_benchmark.py"):
        (benchmarks / script).write_text("print(__file__, 'ran')")
    (tmp_path / "pyproject.toml").write_text("")
    (tests / "test_a.py").write_text("def test_one(): pass\ndef test_two(): assert False")

    def run_gpu(*arguments):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", benchmarks / "run_gpu.sh", *arguments, "--target", target],
            env=os.environ | {"PATH": path, "OUT": str(tmp_path / "out")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run_gpu


@pytest.mark.parametrize(
    ("codes", "runs", "failed"),
    [([0], 1, False), ([3, 3, 0], 3, False), ([3, 1], 2, True), ([3] * 30, 20, True)],
)
def test_run_gpu_runs_a_script_again_while_it_asks_for_it(tmp_path, run_gpu, codes, runs, failed):
    count = tmp_path / "count"
    (tmp_path / "benchmarks" / "one.py").write_text(
        f"import pathlib\ncount = pathlib.Path({str(count)!r})\n"
        "done = int(count.read_text()) if count.exists() else 0\n"
        f"count.write_text(str(done + 1))\nraise SystemExit({codes}[done])\n"
    )
    done = run_gpu("--benchmarks")
    assert count.read_text() == str(runs)
    assert done.returncode == int(failed), done.stderr
    assert ("FAILED: one" in done.stderr) == failed


def test_commit_comes_from_git_without_results(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(
            ["git", *identity, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    here = tmp_path / "benchmarks"
    (here / "results").mkdir(parents=True)
    monkeypatch.setattr(results, "HERE", here)
    with pytest.raises(SystemExit, match="--commit"):
        results.find_commit()
    (tmp_path / "code.py").write_text("")
    git("init", "-q")
    git("add", "code.py")
    git("commit", "-qm", "first")
    (here / "results" / "new.json").write_text("")
    assert results.find_commit() == git("rev-parse", "HEAD")
    (tmp_path / "code.py").write_text("changed")
    assert results.find_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_checking_a_good_file(tmp_path):
    path = complete(tmp_path)
    assert all(entry["met"] for entry in json.loads(path.read_text())["summary"])
    assert not list(check_results.check_file(path, GOALS))


def tamper_value(document):
    document["summary"][2]["value"] = 0.99


def tamper_met(document):
    document["summary"][0]["met"] = False


def tamper_goal(document):
    document["summary"][0]["goal"] = ">= 1"


def tamper_row(document):
    document["rows"][5]["bit_identical"] = False


def tamper_samples(document):
    document["rows"][5]["pytorch"]["seconds"] = [1.0, 1.0, 1.0]


def tamper_drop(document):
    del document["summary"][1]


def tamper_add(document):
    document["summary"].append({"name": "mine", "value": 1, "goal": ">= 1", "met": True})


def tamper_key(document):
    document["rows"][1]["key"] = document["rows"][0]["key"]


def tamper_schema(document):
    document["schema"] = 2


def tamper_name(document):
    document["benchmark"] = "accuracy"


def tamper_provenance(document):
    del document["provenance"]["commit"]


def tamper_field(document):
    del document["date"]


def tamper_extra(document):
    document["comment"] = "all is well"


def tamper_broken_row(document):
    del document["rows"][0]["pytorch"]


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (tamper_value, "summary of 'time_ratio_min' is not"),
        (tamper_met, "summary of 'layers' is not"),
        (tamper_goal, "summary of 'layers' is not"),
        (tamper_row, "summary of 'fraction_bit_identical' is not"),
        (tamper_samples, "summary of 'time_ratio_min' is not"),
        (tamper_drop, "summary of 'fraction_bit_identical' is not"),
        (tamper_add, "summary has 'mine'"),
        (tamper_key, "a key of its own"),
        (tamper_schema, "schema is 2"),
        (tamper_name, "benchmark is 'accuracy'"),
        (tamper_provenance, "provenance must have exactly gpu"),
        (tamper_field, "field 'date' must be of type str"),
        (tamper_extra, "unknown fields: comment"),
        (tamper_broken_row, "rows cannot be summed up"),
    ],
)
def test_checking_a_tampered_file(tmp_path, tamper, says):
    path = complete(tmp_path)
    document = json.loads(path.read_text())
    tamper(document)
    path.write_text(json.dumps(document))
    errors = list(check_results.check_file(path, GOALS))
    assert any(says in error for error in errors), errors


@pytest.mark.parametrize("text", ['{"schema": NaN}', "{", "\xff"])
def test_checking_what_is_no_json(tmp_path, text):
    path = tmp_path / f"{NAME}.json"
    path.write_bytes(text.encode("latin-1"))
    (error,) = check_results.check_file(path, GOALS)
    assert "is not strict JSON" in error


@pytest.fixture
def repository(tmp_path):
    directory = tmp_path / "benchmarks" / "results"
    complete(directory)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        f"before\n<!-- results:{NAME} -->\nstale\n<!-- /results:{NAME} -->\nafter\n"
    )
    (tmp_path / "docs" / "all.md").write_text(
        f"<!-- results:{NAME}:rows -->\n<!-- /results:{NAME}:rows -->\n"
    )
    return tmp_path


def check(repository, *arguments):
    return check_results.main(["--repository", str(repository), *arguments])


def test_tables_are_checked_and_written(repository, capsys):
    assert check(repository, "--check") == 1
    assert capsys.readouterr().err.count("its tables are not those of the result files") == 2
    assert "stale" in (repository / "README.md").read_text()

    assert check(repository, "--write") == 0
    readme = (repository / "README.md").read_text()
    assert readme.startswith("before\n<!--")
    assert readme.endswith("-->\nafter\n")
    assert "stale" not in readme
    assert "| `layers` | 23 | >= 20 | yes |" in readme
    assert "G, driver 1, torch 2.15, cuDNN 9.1; commit abc, 20" in readme
    lines = (repository / "docs" / "all.md").read_text().splitlines()
    assert len(lines) == 2 + 2 + 46
    assert "| layer3 | 1×2×3×4 → 5, 6×7 | float32, nchw | 20.00 | 20.00 | 1.000" in lines[6]
    assert check(repository, "--check") == 0


def test_no_table_is_made_from_a_wrong_file(repository):
    path = repository / "benchmarks" / "results" / f"{NAME}.json"
    document = json.loads(path.read_text())
    tamper_value(document)
    path.write_text(json.dumps(document))
    assert check(repository, "--write") == 1
    assert "stale" in (repository / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- results:nothing -->\n<!-- /results:nothing -->", "nothing.json, which is not in"),
        (f"<!-- results:{NAME} -->\n", "without its counterpart"),
        (f"<!-- results:{NAME} -->\n<!-- /results:{NAME}:rows -->", "without its counterpart"),
        (f"<!-- results:{NAME}:no -->\n<!-- /results:{NAME}:no -->", "has no no_table() for"),
    ],
)
def test_wrong_markers(repository, capsys, text, says):
    (repository / "README.md").write_text(text)
    assert check(repository, "--write") == 1
    assert says in capsys.readouterr().err


def test_shard_files_are_left_out(repository):
    shard = repository / "benchmarks" / "results" / f"{NAME}.shard-1-of-2.json"
    shard.write_text("{")
    assert check(repository, "--write") == 0


def test_a_missed_goal_is_shown_and_is_no_error(repository, capsys):
    directory = repository / "benchmarks" / "results"
    open_file(directory).add("one more", row("x", identical=False))
    assert check(repository, "--write") == 0
    assert "MISS fraction_bit_identical" in capsys.readouterr().out
    assert "| no |" in (repository / "README.md").read_text()


def test_reference_goals(repository, tmp_path, capsys):
    assert check(repository, "--write") == 0
    same = tmp_path / "same.json"
    same.write_text((BENCHMARKS / "goals.json").read_text())
    assert check(repository, "--reference-goals", str(same)) == 0
    assert "differs" not in capsys.readouterr().out
    goals = json.loads(same.read_text())
    goals[NAME]["layers"] = ">= 21"
    same.write_text(json.dumps(goals))
    assert check(repository, "--reference-goals", str(same)) == 0
    assert capsys.readouterr().out.count(f"goals.json differs from {same}") == 1


def test_the_result_files_can_be_checked_without_torch_and_convtime():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'convtime', 'triton', 'vl_convert'))\n"
        "import check_results; sys.exit(check_results.main([]))"
    )
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def test_the_benchmark_runs_in_shards_and_resumes(tmp_path, monkeypatch, capsys):
    def run(shard):
        arguments = [
            *("--output", str(tmp_path), "--shard", shard, "--commit", "abc", "--device", "cpu"),
            *("--batch", "1", "--budget", "0.01", "--max-samples", "10"),
        ]
        monkeypatch.setattr(sys, "argv", [NAME, *arguments])
        compare_resnet50.main()
        return capsys.readouterr().out

    assert run("46/46").count("float16 nhwc layer4.1.conv2: ") == 1
    assert "layer4.1.conv2: " not in run("46/46")
    (path,) = tmp_path.iterdir()
    (only,) = json.loads(path.read_text())["rows"]
    assert only["key"] == "float16 nhwc layer4.1.conv2"
    assert only["layer"]["problem"]["batch"] == 1
    assert 1 <= len(only["pytorch"]["seconds"]) == len(only["convtime"]["seconds"]) <= 10
