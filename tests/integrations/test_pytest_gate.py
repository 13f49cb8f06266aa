"""The gate of the pytest plugin, by tests of tests whose times are written down."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_convtime

from convtime.exchange.files import read_baseline
from convtime.integrations import pytest_gate
from convtime.integrations.pytest_gate import Gate
from convtime.regression.baseline import Baseline
from convtime.regression.show_baseline import remarks
from tests.integrations.conftest import PAIR, SAVED, SUITE, Runs, output

pytest_plugins = "pytester"

AGAINST = ("--convtime-against=main",)
SLOWER = (*AGAINST, "--convtime-fail-on=slower")
BISECT = (*SLOWER, "--convtime-bisect")
USAGE_ERROR = pytest.ExitCode.USAGE_ERROR


def test_exit_code_and_last_line_are_the_verdict(run: Runs) -> None:
    run.save()
    missing = (*AGAINST, "--convtime-fail-on=slower,missing")
    both = ("--convtime-fail-on=faster", "--convtime-fail-on=slower", "--convtime-bisect")
    uncertain = (*AGAINST, "--convtime-fail-on=uncertain")
    passed, failed, unknown = "convtime: passed: 2 compared", "convtime: failed: ", "inconclusive: "
    cases: list[tuple[tuple[str, ...], dict[str, str], int, str]] = [
        (SLOWER, {}, 0, f"{passed}, none slower"),
        (AGAINST, {"FACTOR": "1.1"}, 0, "2 passed"),  # nothing is to fail
        (SLOWER, {"FACTOR": "1.1"}, 1, f"{failed}slower: {SAVED[0]} (1.100, margin 3.0%, "),
        ((*AGAINST, "--convtime-fail-on=slower:12%"), {"FACTOR": "1.1"}, 0, passed),
        ((*AGAINST, *both), {"FACTOR": "1.1"}, 1, failed),
        ((*AGAINST, *both), {"FACTOR": "0.9"}, 1, f"{failed}faster: "),
        (BISECT, {"FACTOR": "0.9"}, 0, passed),
        (BISECT, {"SPREAD": "0.9"}, 125, f"{unknown}exit code 125"),
        ((*BISECT, "-k", "quick"), {}, 125, unknown),
        (SLOWER, {"SPREAD": "0.9"}, 0, unknown),
        (uncertain, {"SPREAD": "0.9"}, 1, f"{failed}uncertain: "),
        ((*SLOWER, "-k", "quick"), {}, 0, "passed: 1 of 2 compared"),
        ((*missing, "-k", "slow"), {}, 1, f"{failed}missing: {SAVED[1]}"),
        (SLOWER, {"CPU": "another CPU"}, 0, f"{unknown}none of 2 could be compared"),
        (BISECT, {"CPU": "another CPU"}, 125, unknown),
        ((*AGAINST, "--convtime-fail-on=missing"), {"CPU": "x"}, 0, "0 of 2 compared, none miss"),
    ]
    for options, environment, code, said in cases:
        result = run(*options, **environment)
        assert (result.ret, options, environment) == (code, options, environment)
        assert said in result.outlines[-1]
    colored = run(*SLOWER, "--color=yes", FACTOR="1.1").outlines[-1]
    assert colored.startswith("\x1b[31m\x1b[1m")  # red and bold
    assert run(*SLOWER, "--color=yes", CPU="x").outlines[-1].startswith("\x1b[33m")  # yellow


def test_a_finding_is_shown_and_written(run: Runs) -> None:
    run.save()
    files = ("--convtime-markdown=changes.md", "--convtime-json=changes.json")
    slow = run(*SLOWER, *files, FACTOR="1.05")
    slow.assert_outcomes(passed=2)
    slow.stdout.fnmatch_lines(
        [
            "convtime: 1 found, running again alone",
            "2 compared: 1 slower, 1 same*",
            "slower *::test_slow",
        ]
    )
    assert "found twice, first as 1.05" in output(slow)
    assert "judge it with --convtime-relative" in output(slow)
    headline, _, environment, *rest = Path("changes.md").read_text("utf-8").splitlines()
    assert headline.startswith("**failed: slower: test\\_it.py::test\\_slow")
    assert "torch 2" in environment
    assert "| slower | 1.05" in "\n".join(rest)
    changes = json.loads(Path("changes.json").read_text(encoding="utf-8"))
    assert [change["verdict"] for change in changes["changes"]] == ["slower", "same"]
    equal = run(*SLOWER, "--convtime-markdown=changes.md")
    equal.stdout.fnmatch_lines(["2 compared: 2 same; geomean 1.0000*"])
    assert "cause:" not in output(equal)
    assert Path("changes.md").read_text("utf-8").startswith("**passed: 2 compared")


def test_what_a_second_look_does_not_bear_out_does_not_count(run: Runs) -> None:
    run.save()
    result = run(*SLOWER, FACTOR="1.1", FACTOR_AGAIN="1.0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 compared: 2 same*"])
    again = run(*SLOWER, FACTOR="1.0", FACTOR_AGAIN="1.1")  # nobody looks
    assert again.ret == 0
    assert "running again" not in output(again)
    lost = run(*SLOWER, FACTOR="1.1", FACTOR_AGAIN="none")
    assert lost.ret == 1
    lost.stdout.fnmatch_lines(["run again alone, *test_slow gave no time (1 failed)*"])


def test_more_instructions_fail_a_run_that_is_to(run: Runs) -> None:
    run.save(INSTRUCTIONS="1e6")
    against = (*AGAINST, "--convtime-bisect", "--convtime-fail-on")
    assert run(*against, "slower", INSTRUCTIONS="1.02e6").ret == 0
    assert run(*against, "more-instructions:3%", INSTRUCTIONS="1.02e6").ret == 0
    more = run(*against, "slower:5%,more-instructions", INSTRUCTIONS="1.02e6")
    assert more.ret == 1
    more.stdout.fnmatch_lines(["convtime: 2 found, running again alone", "2 compared: 2 same*"])
    assert "2.00% more instructions" in output(more)
    uncounted = run(*against, "more-instructions")
    assert uncounted.ret == 125
    assert "and 1 more: the later run has no instruction counts (perf is not allowed)" in (
        output(uncounted)
    )


def test_beside_a_baseline_only_the_ratio_counts(run: Runs) -> None:
    run.pytester.makepyfile(test_it=SUITE + PAIR)
    assert run("--convtime-save=main", "-k", "pair").ret == 0
    pair = (*AGAINST, "-k", "pair")
    run(*pair, FACTOR="1.1").stdout.fnmatch_lines(["2 compared: 2 slower*"])
    relative = (*pair, "--convtime-relative", "--convtime-fail-on=slower:3%")
    alike = run(*relative, FACTOR="1.1")
    assert alike.ret == 0
    alike.stdout.fnmatch_lines(["1 compared: 1 same*", "*baseline *::test_slow_pair quick: *"])
    slower = run(*relative, FACTOR="0.9", CALL_FACTOR="1.05")
    assert slower.ret == 1
    slower.stdout.fnmatch_lines(["1 compared: 1 slower*", "slower *::test_slow_pair call*"])
    assert "found twice, first as 1.05" in output(slower)
    assert "--convtime-relative" not in output(slower)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ("import a_module_that_is_not_there", pytest.ExitCode.INTERRUPTED),
        ("import pytest\ndef test_it(): pytest.exit('enough')", pytest.ExitCode.INTERRUPTED),
        ("def test_other(): assert False", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_commit_that_cannot_be_run_is_skipped_by_git_bisect(
    other: str, code: int, run: Runs
) -> None:
    run.save()
    run.pytester.makepyfile(test_other=other)
    assert run(*SLOWER).ret == code
    assert run(*BISECT).ret == 125


def test_another_result_fails_where_that_is_asked(run: Runs) -> None:
    pair = """
def test_pair(compare):
    compare({"a": lambda: torch.zeros(2), "b": lambda: torch.ones(2)}, max_samples=10)
"""
    run.pytester.makepyfile(test_it=f"import pytest, torch{pair}")
    assert run("--convtime-save=main").ret == 0
    files = ("--convtime-markdown=changes.md", "--convtime-json=changes.json")
    for options in ((), (*AGAINST, *files)):
        result = run("--convtime-fail-on=different", *options)
        assert result.ret == 1
        result.stdout.fnmatch_lines(["different: *::test_pair b: *"])
    assert "- different: test" in Path("changes.md").read_text(encoding="utf-8")
    changes = json.loads(Path("changes.json").read_text(encoding="utf-8"))
    assert [*changes["different"]] == ["test_it.py::test_pair b"]
    for ending in ("xfail", "skip"):  # of tests that do not pass
        run.pytester.makepyfile(test_it=f"import pytest, torch{pair}    pytest.{ending}('known')")
        result = run("--convtime-fail-on=different")
        assert result.ret == 0
        assert "different:" not in output(result)


def test_a_run_of_some_tests_keeps_the_others_baselines(run: Runs) -> None:
    run.save()
    before = run.saved()["measurements"]
    assert run("--convtime-save=main", "-k", "slow", FACTOR="2").ret == 0
    after = run.saved()["measurements"]
    assert after[SAVED[1]] == before[SAVED[1]]
    assert after[SAVED[0]]["seconds"] != before[SAVED[0]]["seconds"]
    run.pytester.makepyfile(test_it=SUITE.replace("time_op(int)\n", "assert False\n"))
    failed = run("--convtime-save=main", FACTOR="3")
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    failed.stdout.fnmatch_lines(["*; 1 of tests that did not run or did not pass are kept"])
    assert run.saved()["measurements"][SAVED[1]] == before[SAVED[1]]
    assert run.saved()["measurements"][SAVED[0]] != after[SAVED[0]]
    assert run("--convtime-save=other").ret == pytest.ExitCode.TESTS_FAILED
    assert len(run.saved("other")["measurements"]) == 1


@pytest.mark.parametrize("workers", [(), pytest.param(("-n1",), marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "ending", ["assert False", "pytest.xfail('known')", "request.addfinalizer(lambda: 1 / 0)"]
)
def test_the_time_of_a_test_that_does_not_pass_is_not_saved(
    ending: str, workers: tuple[str, ...], run: Runs
) -> None:
    failing = f"\n\ndef test_failing(time_op, request):\n    time_op(int)\n    {ending}\n"
    run.pytester.makepyfile(test_it=SUITE + failing)
    result = run("--convtime-save=main", *workers, PYTHONPATH=os.pathsep.join(sys.path))
    assert result.ret == (0 if "xfail" in ending else 1)
    assert [*run.saved()["measurements"]] == SAVED


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="subtests need pytest 9")
def test_a_skipped_subtest_leaves_its_tests_times(run: Runs) -> None:
    parts = "\ndef test_parts(time_op, subtests):\n    time_op(int)\n"
    run.save(parts + "    with subtests.test():\n        pytest.skip('this part')\n")
    assert [*run.saved()["measurements"]] == [*SAVED, "test_it.py::test_parts"]


def test_a_run_that_measures_nothing_or_is_interrupted_keeps_what_was_saved(run: Runs) -> None:
    run.save()
    before = run.saved()
    assert "nothing was measured: " in output(run("--convtime-save=main", "-k", "nothing"))
    gate = ("--convtime-save=main", *SLOWER)
    for ending, options, code in (
        ("pytest.exit('enough')", (), pytest.ExitCode.INTERRUPTED),
        ("pytest.exit('enough', returncode=0)", (), pytest.ExitCode.OK),
        ("assert False", ("--maxfail=1",), pytest.ExitCode.TESTS_FAILED),
    ):
        run.pytester.makepyfile(test_later=f"import pytest\ndef test_later(): {ending}")
        stopped = run(*gate, *options, FACTOR="2")
        assert stopped.ret == code
        assert stopped.outlines[-1] == "convtime: inconclusive: the run stopped early"
        assert run.saved() == before


def test_what_another_run_saves_meanwhile_is_kept(run: Runs) -> None:
    run.save()
    (run.pytester.path / ".convtime" / "main.json").rename("other.json")
    saving = "\n    os.rename('other.json', '.convtime/main.json')"
    run.pytester.makepyfile(
        test_it=SUITE.replace("def test_slow(time_op):", f"def test_slow(time_op):{saving}")
    )
    assert run("--convtime-save=main", "-k", "slow").ret == 0
    assert {*run.saved()["measurements"]} == {*SAVED}


def test_calibrated_tests_have_their_own_margins(run: Runs) -> None:
    run.pytester.makepyfile(test_it=SUITE)
    assert run("--convtime-save=main", "--convtime-calibrate", "5").ret == 0
    noise = run.saved()["repeats"][SAVED[0]]["noise"]
    assert noise["processes"] == 5
    assert 0 < noise["margin"] < 0.015  # all processes read the same times
    slower = run(*BISECT, FACTOR="1.02")
    assert slower.ret == 1
    assert f"test_slow (1.020, margin {noise['margin']:.1%}, " in slower.outlines[-1]
    assert run(*BISECT).ret == 0
    assert run(*AGAINST, "--convtime-fail-on=slower:3%", FACTOR="1.02").ret == 0


def test_runs_that_are_outlying_do_not_count(run: Runs) -> None:
    run.pytester.makepyfile(test_it=SUITE)
    loaded = {"FACTOR": "1.4", "FACTOR_AGAIN": "1"}
    first = run("--convtime-save=main", "--convtime-runs=3", **loaded)
    assert "run 1 is outlying and does not count for test_it.py::test_slow (1.40×)" in output(first)
    later = run(*AGAINST, "--convtime-fail-on=faster,slower")
    assert later.ret == 0
    later.stdout.fnmatch_lines(["2 compared: 2 same*"])

    result = run("--convtime-save=few", "--convtime-calibrate", "5", **loaded)
    said = (
        "not calibrated, so that the common margin counts: test_it.py::test_slow (4 runs left); "
        "at least 5 are needed: calibrate with more runs"
    )
    assert said in result.outlines
    found = read_baseline(run.pytester.path / ".convtime" / "few.json")
    assert said in str(found)
    (none,) = remarks(Baseline(found.measurements), calibrated=True)
    assert "test_it.py::test_slow (1 run left), test_it.py::test_quick (1 run left); at" in none


def test_a_history_gets_a_file_for_each_run(run: Runs) -> None:
    run.pytester.makepyfile(test_it=SUITE)
    folder = run.pytester.path / "times" / "history"
    history = ("--convtime-history=times/history",)
    for _ in range(2):
        assert f"2 measurements added as {folder}/" in output(run(*history))
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        times = json.loads(file.read_text(encoding="utf-8"))["times"]
        assert [row[0] for row in times] == SAVED
        assert [row[1] for row in times] == pytest.approx([1e-3] * 2, rel=0.02)
    assert "nothing was measured: " in output(run(*history, "-k", "nothing"))
    run.pytester.makepyfile(test_later="import pytest\ndef test_later(): pytest.exit('enough')")
    assert "the run stopped early: " in output(run(*history))
    assert sorted(folder.iterdir()) == files


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": "1.0", "measurements": {"a"',
        '{"measurements": {"<script>": {"schema": "4.2"}}}',
    ],
    ids=lambda content: content[:20],
)
def test_files_that_are_no_run_are_refused(content: str, run: Runs) -> None:
    run.pytester.makepyfile("def test_it(): open('ran', 'w')")
    Path("other.json").write_text(content)
    result = run("--convtime-against=other.json")
    assert result.ret == USAGE_ERROR
    (error,) = (line for line in output(result).splitlines() if line.startswith("ERROR: "))
    assert "other.json" in error
    assert "Traceback" not in output(result)
    assert not Path("ran").exists()


def test_files_that_cannot_be_written_are_refused(run: Runs) -> None:
    run.save()
    before = run.saved()
    file = run.pytester.path / ".convtime" / "main.json"
    run.pytester.makepyfile(test_it="def test_it(): open('ran', 'w')")
    Path("file").touch()
    different = "must name different files"
    for options, said in (
        (("--convtime-history=file",), "is not a folder for a history (File exists)"),
        ((*AGAINST, "--convtime-json=out", "--convtime-markdown=./out"), different),
        ((*AGAINST, "--convtime-json=.convtime/main.json"), different),
        ((*AGAINST, "--convtime-json=.convtime/new.json", "--convtime-save=new"), different),
        (("--convtime-against=mian",), "saved runs are main; save one"),
    ):
        result = run(*options)
        assert result.ret == USAGE_ERROR
        assert said in output(result)
    file.chmod(0o444)
    assert "main.json: cannot be written, since it is read-only" in output(
        run("--convtime-save=main")
    )
    assert run.saved() == before
    shutil.rmtree(".convtime")
    Path(".convtime").touch()
    result = run("--convtime-save=main")
    assert "runs cannot be saved there (File exists)" in output(result)
    assert not Path("ran").exists()


def test_a_gate_that_cannot_write_its_files_has_failed(run: Runs) -> None:
    run.save()
    run.pytester.mkdir("out")
    run.pytester.makepyfile(test_last="def test_last(): __import__('shutil').rmtree('out')")
    result = run(*AGAINST, "--convtime-json=out/it", "--color=yes")
    assert result.ret == USAGE_ERROR
    assert result.outlines[-1].startswith("\x1b[31m")  # red
    assert "convtime: failed: " in result.outlines[-1]
    assert "out/it: cannot be written" in result.outlines[-1]


@pytest.mark.thorough
def test_findings_and_noise_come_from_fresh_processes(real_run: Runs) -> None:
    """Whatever tests write, and whatever plugins do with pytest's arguments and files."""
    run = real_run
    printing = "def test_slow(time_op, tmp_path):\n    os.write(1, b'\\xff\\xfe')\n    "
    printing += "(tmp_path / 'kept').touch(); __import__('logging').warning('of the first run')"
    run.pytester.makepyfile(test_it=SUITE.replace("def test_slow(time_op):", printing))
    assert run("--convtime-save=main", "--convtime-calibrate", "5").ret == 0
    assert run.saved()["repeats"][SAVED[0]]["noise"]["processes"] == 5
    files = ("--basetemp=made", "--log-file=run.log", "--junitxml=run.xml", "-p", "cacheprovider")
    slow = run(*SLOWER, *files, "-s", FACTOR="1.05")
    assert slow.ret == 1
    assert "found twice, first as 1.05" in output(slow)
    assert [*Path("made").rglob("kept")]
    assert "of the first run" in Path("run.log").read_text(encoding="utf-8")
    assert 'tests="2"' in Path("run.xml").read_text(encoding="utf-8")
    assert run(*SLOWER, FACTOR="1.1", FACTOR_AGAIN="1.0").ret == 0


@pytest.mark.thorough
def test_a_finding_is_confirmed_with_both_commits(
    real_run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take longer now, so that the code has not changed; the folder has the later code."""
    run, pytester = real_run, real_run.pytester
    monkeypatch.setattr(pytest_gate, "_ROUNDS", 1)
    monkeypatch.setattr(pytest_convtime, "_FOLDER_IS_FIRST", True)
    state = "'folder' if os.getcwd() in sys.path else '', 'PYTHONSAFEPATH' in os.environ"
    logging = f"\nimport sys\nprint({state}, file=open('log', 'a'))\n"
    (pytester.mkdir("checks") / "test_it.py").write_text(SUITE + logging)
    assert run("--convtime-save=main").ret == 0
    assert run(*SLOWER, FACTOR="1.1").ret == 1
    base = shutil.copy(run.python, pytester.path / "python")
    both = run(*SLOWER, f"--convtime-base={base}", FACTOR="1.1")
    assert both.ret == 0
    both.stdout.fnmatch_lines(["2 compared: 2 same*"])
    log = (pytester.path / "log").read_text(encoding="utf-8").splitlines()
    assert log[-2:] == [" False", "folder False"]


def test_the_folders_commit_is_not_that_of_a_base(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = itertools.cycle(["_baseline", "_run"])  # of a base and this environment, each run

    def again(gate: Gate, *_: Any, **_found: bool) -> tuple[Any, str]:
        alone = gate._base_python is None
        side = gate._run if alone else getattr(gate, next(in_turn))
        return dict(side.measurements), ""

    monkeypatch.setattr(Gate, "_run_again", again)
    run.save()
    one = run(*SLOWER, FACTOR="1.1")
    assert one.outlines[-1].endswith("test_slow (1.100, margin 3.0%, noise)")
    both = run(*SLOWER, f"--convtime-base={sys.executable}", FACTOR="1.1")
    assert both.outlines[-1].endswith("test_slow (1.100, margin 3.0%, code)")
    assert "cause: code: commit: the base's → " in output(both)


@pytest.mark.thorough
def test_a_base_that_imports_the_heads_code_is_refused(
    real_run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pytester = real_run, real_run.pytester
    site = pytester.mkdir("site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    information = site / "package-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: package\nVersion: 1")
    (information / "top_level.txt").write_text("package")
    for folder in (site, pytester.path):
        (folder / "package.py").touch()
    tests = pytester.mkdir("checks")
    (tests / "__init__.py").touch()
    (tests / "test_it.py").write_text("import package\n" + SUITE)
    assert run("--convtime-save=main").ret == 0
    base = shutil.copy(run.python, pytester.path / "python")
    gate = (*SLOWER, f"--convtime-base={base}")
    result = run(*gate)
    assert result.ret == USAGE_ERROR
    said = f"must measure package as installed in {site}, but imports it from {pytester.path}, "
    assert said in result.outlines[-1]
    assert run(*gate, "--import-mode=importlib").ret == 0


TURNS = """
import time
import pytest
import pytest_convtime

pytest_convtime._PATIENCE_SECONDS = 600.0  # on a machine that is very busy

@pytest.mark.parametrize("number", range(4))
def test_it(time_op, number):
    def alone():
        with open("log", "a") as log:
            log.write(f"{number}\\n")
            log.flush()
        time.sleep(0.05)
    time_op(alone, warmup=1, stop="count", min_samples=4, max_samples=4)

def test_benchmark(gpu_benchmark):
    assert gpu_benchmark(int, "7") == 7
"""


@pytest.mark.thorough
def test_under_xdist_workers_take_turns_and_all_they_measure_is_saved_and_judged(
    real_run: Runs, tmp_path: Path
) -> None:
    run = real_run
    run.pytester.makepyfile(test_it=SUITE, test_other=SUITE.replace("test_quick", "test_third"))
    assert run("--convtime-save=main").ret == 0
    run.pytester.makepyfile(test_turns=TURNS)
    slow = run("-n2", *SLOWER, "--convtime-save=now", FACTOR="1.1", XDG_STATE_HOME=str(tmp_path))
    assert slow.ret == 1
    slow.stdout.fnmatch_lines(
        ["*2 found, running again alone", "8 compared: 2 slower, 2 same, 4 new*"]
    )
    before, now = (set(run.saved(name)["measurements"]) for name in ("main", "now"))
    assert now - before == {f"test_turns.py::test_it[{number}]" for number in range(4)}
    assert before < now
    assert (tmp_path / "convtime" / "timing-cpu.lock").exists()
    calls = (run.pytester.path / "log").read_text().split()
    assert sum(one != other for one, other in itertools.pairwise(calls)) == 3
    assert "timed nothing: pytest-benchmark disables itself under xdist" in output(slow)


@pytest.mark.thorough
def test_convolutions_that_are_found_come_with_their_reproducer(real_run: Runs) -> None:
    data = "import torch\nX, W = torch.ones(1, 2, 5, 6), torch.ones(3, 2, 3, 3)\n"
    call = "time_op(torch.conv2d, X, W, kwargs={'padding': 1})"
    real_run.pytester.makepyfile(test_it=data + SUITE.replace("time_op(int)", call))
    assert real_run("--convtime-save=main").ret == 0
    slow = real_run(*SLOWER, FACTOR="1.1")
    assert slow.ret == 1
    slow.stdout.fnmatch_lines(["*again: convtime conv conv2d:n1c2h5w6k3r3s3p1:float32:nchw"])


@pytest.mark.cuda
@pytest.mark.thorough
def test_under_xdist_timings_on_a_gpu_take_turns(run: Runs) -> None:
    run.pytester.makepyfile(
        """
        import pytest, torch
        @pytest.mark.parametrize("number", range(4))
        def test_it(time_op, number):
            assert time_op(torch.relu, torch.randn(1 << 20, device="cuda")).exclusive
        """
    )
    run("-n2").assert_outcomes(passed=4)
