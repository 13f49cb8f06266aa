"""The benchmarks' result files: what is written, resumed, merged, judged and shown."""

import argparse
import json
import os
import subprocess
import sys

import check_results
import compare_resnet50
import pytest
import results
from hypothesis import given
from hypothesis import strategies as st

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
    return argparse.Namespace(output=directory, shard=shard, commit=commit, seconds=1.0)


def open_file(directory, facts=FACTS, **changes):
    return results.ResultFile(NAME, options(directory, **changes), facts)


def complete(directory):
    """A result file that meets every goal."""
    file = open_file(directory)
    for dtype, layout in compare_resnet50.CONFIGURATIONS:
        for index in range(23):
            file.add(f"{dtype} {index}", row(f"layer{index}", dtype=dtype, layout=layout))
    return file.path


@given(st.sampled_from([">=", "<=", "==", ">", "<"]), st.integers(-3, 3), st.integers(-3, 3))
def test_goals(relation, value, limit):
    met = eval(f"{value} {relation} {limit}")
    assert results.meets(value, f"{relation} {limit}") is met


@pytest.mark.parametrize("goal", ["0.97", "=> 1", ">= 1 or so", ">= nan"])
def test_goals_that_are_none(goal):
    with pytest.raises(ValueError, match="must be a relation and a number"):
        results.meets(1, goal)


def test_a_value_that_the_rows_do_not_yield_is_a_miss():
    goals = {"there": ">= 1", "absent": ">= 0"}
    there, absent = results.make_summary([{}], lambda rows: {"there": 2, "more": 3}, goals)
    assert there == {"name": "there", "value": 2, "goal": ">= 1", "met": True}
    assert absent == {"name": "absent", "value": None, "goal": ">= 0", "met": False}
    nothing = results.make_summary([], max, goals)  # type: ignore[arg-type]
    assert not any(entry["met"] for entry in nothing)


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


@pytest.mark.parametrize(
    ("change", "arguments"),
    [({"facts": FACTS | {"driver": "2"}}, []), ({"commit": "def"}, []), ({}, ["--batch", "2"])],
)
def test_rows_of_another_run_are_not_resumed(tmp_path, capsys, monkeypatch, change, arguments):
    monkeypatch.setattr(sys, "argv", [f"{NAME}.py"])
    open_file(tmp_path).add("a", row("a"))
    assert open_file(tmp_path).pending({"a": 1}) == {}
    monkeypatch.setattr(sys, "argv", [f"{NAME}.py", *arguments])
    assert open_file(tmp_path, **change).pending({"a": 1}) == {"a": 1}
    assert "starting anew" in capsys.readouterr().out


def test_shards_take_every_case_once_and_merge_in_order(tmp_path):
    cases = {f"case{index}": index for index in range(7)}
    for number in (3, 1, 2):
        file = open_file(tmp_path, shard=(number, 3))
        for key in file.pending(cases):
            file.add(key, row(key))
    assert not (tmp_path / f"{NAME}.json").exists()
    path = results.merge(NAME, tmp_path)
    document = json.loads(path.read_text())
    assert [row["key"] for row in document["rows"]] == list(cases)
    assert not list(check_results.check_file(path, GOALS))


def test_merge_refuses_missing_and_mixed_shards(tmp_path):
    for number, commit, says in (
        (3, "abc", f"lacks shards of {NAME}: 1/3, 2/3"),
        (1, "abc", f"lacks shards of {NAME}: 2/3"),
        (2, "other", r"shard 2/3 of .* has commit 'other', but shard 1/3 'abc'"),
    ):
        open_file(tmp_path, shard=(number, 3), commit=commit).add(f"{number}", row("a"))
        with pytest.raises(ValueError, match=says):
            results.merge(NAME, tmp_path)


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ((3, 2, 2), None),
        ((3, 2, 3), "2/3 has 2 rows of 3 or more"),
        ((1, 4, 1), "1/3 has 1 rows of 4 or more, 3/3 has 1 rows of 3 or more"),
    ],
)
def test_merge_refuses_incomplete_shards(tmp_path, lengths, says):
    for number, length in enumerate(lengths, start=1):
        rows = {f"{number}.{index}": row("a") for index in range(length)}
        open_file(tmp_path, shard=(number, 3)).add_all(rows)
    if says is None:
        results.merge(NAME, tmp_path)
        return
    with pytest.raises(ValueError, match="incomplete and must be run again") as error:
        results.merge(NAME, tmp_path)
    assert str(error.value).endswith(f": {says}")
    assert not (tmp_path / f"{NAME}.json").exists()


def test_a_file_is_judged_anew_by_other_goals(tmp_path, monkeypatch):
    path = complete(tmp_path)
    before = json.loads(path.read_text())
    goals = {"layers": ">= 24", "not_measured": ">= 1"}
    monkeypatch.setattr(results, "load_goals", lambda: {NAME: goals})
    assert results.judge(NAME, tmp_path) == path
    after = json.loads(path.read_text())
    assert after.pop("summary") == [
        {"name": "layers", "value": 23, "goal": ">= 24", "met": False},
        {"name": "not_measured", "value": None, "goal": ">= 1", "met": False},
    ]
    assert after == {name: value for name, value in before.items() if name != "summary"}
    path.unlink()
    with pytest.raises(ValueError, match=f"has no {NAME}.json; run the benchmark first"):
        results.judge(NAME, tmp_path)


def test_commit_comes_from_git_without_results(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        command = ["git", *identity, *arguments]
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

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


def changed(number, **fields):
    return lambda document: document["summary"][number].update(fields)


def slower(document):
    document["rows"][5]["pytorch"]["seconds"] = [1.0, 1.0, 1.0]


def repeated(document):
    document["rows"][1]["key"] = document["rows"][0]["key"]


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (changed(2, value=0.99), "summary of 'time_ratio_min' is not"),
        (changed(0, met=False), "summary of 'layers' is not"),
        (slower, "summary of 'time_ratio_min' is not"),
        (lambda document: document["summary"].pop(1), "summary of 'fraction_bit_identical' is not"),
        (lambda document: document["summary"].append({"name": "mine"}), "summary has 'mine'"),
        (repeated, "a key of its own"),
        (lambda document: document.update(schema=2), "schema is 2"),
        (lambda document: document["provenance"].pop("commit"), "provenance must have exactly gpu"),
        (lambda document: document.pop("date"), "field 'date' must be of type str"),
        (lambda document: document.update(comment="well"), "unknown fields: comment"),
        (lambda document: document["rows"][0].pop("pytorch"), "rows cannot be summed up"),
    ],
)
def test_a_tampered_file_is_refused(tmp_path, tamper, says):
    path = complete(tmp_path)
    assert not list(check_results.check_file(path, GOALS))
    document = json.loads(path.read_text())
    tamper(document)
    path.write_text(json.dumps(document))
    errors = list(check_results.check_file(path, GOALS))
    assert any(says in error for error in errors), errors
    path.write_text('{"schema": NaN}')
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- results:nothing -->\n<!-- /results:nothing -->", "nothing.json, which is not in"),
        (f"<!-- results:{NAME} -->\n", "without its counterpart"),
        (f"<!-- results:{NAME}:no -->\n<!-- /results:{NAME}:no -->", "has no no_table() for"),
    ],
)
def test_wrong_markers(repository, capsys, text, says):
    (repository / "README.md").write_text(text)
    assert check(repository, "--write") == 1
    assert says in capsys.readouterr().err


def test_a_missed_goal_is_shown_and_is_no_error(repository, capsys):
    directory = repository / "benchmarks" / "results"
    open_file(directory).add("one more", row("x", identical=False))
    assert check(repository, "--write") == 0
    assert "MISS fraction_bit_identical" in capsys.readouterr().out
    assert "| no |" in (repository / "README.md").read_text()


def test_the_result_files_can_be_checked_without_torch_and_convtime():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'convtime', 'triton', 'vl_convert'))\n"
        "import check_results; sys.exit(check_results.main([]))"
    )
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)
