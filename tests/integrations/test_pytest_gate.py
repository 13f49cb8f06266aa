"""The pytest plugin, by tests of tests that use it on a CPU."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import pytest_convtime

# What a pytest within this one imports, it forgets afterwards, but for what was there before.
import convtime.conv.sources.called
import convtime.device.gpu_turn
import convtime.exchange.files
import convtime.histories.run
import convtime.integrations.gpu_benchmark
import convtime.integrations.pytest_gate
import convtime.regression.compare_runs
import convtime.regression.show
import convtime.timing.agreement
import convtime.timing.show
import convtime.timing.time_op
from convtime.integrations.pytest_gate import Gate
from convtime.regression.baseline import Baseline
from convtime.regression.show_baseline import remarks
from convtime.timing.measurement import Measurement
from tests.helpers import ROOT

pytest_plugins = "pytester"

pytest.importorskip("pytest_benchmark")
_DRAWS_HISTOGRAMS = importlib.util.find_spec("pygal") is not None
if _DRAWS_HISTOGRAMS:
    # It brings a package that finds distributions in Python's place as soon as it is imported.
    import pytest_benchmark.histogram  # noqa: F401

_IS_INSTALLED = any(
    entry.value == "pytest_convtime" for entry in importlib.metadata.entry_points(group="pytest11")
)
# By its module's name, whether convtime is installed or stands in a folder of Python's path.
LOADED = ("-p", "no:convtime", "-p", "pytest_convtime")
# What every pytest would import anew takes seconds.
OTHERS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:nbval")

# Times that are written down, in place of real ones: of slow tests FACTOR times as long, and of
# what is compared there with a baseline, CALL_FACTOR times the baseline's.
SUITE = """
import os
import dataclasses, random
import pytest
import convtime
from convtime.timing.host_reading import HostReading
from convtime.timing import together

FACTOR = float(os.environ.get("FACTOR", "1"))
# Of a process of its own that runs tests again.
AGAIN = float(os.environ.get("FACTOR_AGAIN", os.environ.get("FACTOR", "1")))

@pytest.fixture(autouse=True)
def written_times(monkeypatch, request):
    real = together.measure
    factor = AGAIN if request.config.option.convtime_again else FACTOR
    spread = float(os.environ.get("SPREAD", "0.01"))

    def measure(candidates, options, **more):
        few = dataclasses.replace(options, min_samples=1, max_samples=6, warmup=1)
        found = real(candidates, few, **more)
        random.seed(1)
        slow = factor if "slow" in request.node.name else 1.0
        seconds = tuple(slow * 1e-3 * random.uniform(1 - spread, 1 + spread) for _ in range(60))
        counts = os.environ.get("INSTRUCTIONS")
        reading = HostReading(60, 0.06, 0.06, instructions=float(counts) if counts else None)
        own = [1.0, *[float(os.environ.get("CALL_FACTOR", "1"))] * (len(found) - 1)]
        return [
            dataclasses.replace(
                one,
                seconds=tuple(f * s for s in seconds),
                batches=(),
                host=(reading,),
                repeats=1,
                between_runs=0.0,
                counters_reason="" if counts else "perf is not allowed",
            )
            for f, one in zip(own, found)
        ]

    monkeypatch.setattr(together, "measure", measure)

def test_slow(time_op):
    assert len(time_op(int).seconds) == 60

def test_quick(time_op):
    time_op(int)
"""


SAVED = ["test_it.py::test_slow", "test_it.py::test_quick"]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_python: str) -> Any:
    """Runs pytest, with variables of its environment."""

    def run_pytest(*arguments: str, **environment: str) -> pytest.RunResult:
        with monkeypatch.context() as variables:
            variables.delenv("PYTEST_XDIST_WORKER", raising=False)  # of the pytest around this one
            for name, value in environment.items():
                variables.setenv(name, value)
            variables.setattr(sys, "executable", warm_python)
            # In this process, and without more runs in others: importing torch takes seconds.
            runs = () if "--convtime-calibrate" in arguments else ("--convtime-runs=1",)
            return pytester.runpytest_inprocess(*LOADED, *OTHERS, *runs, *arguments)

    return run_pytest


def saved(pytester: pytest.Pytester, name: str = "main") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (pytester.path / ".convtime" / f"{name}.json").read_text(encoding="utf-8")
    )
    return document


def output(result: pytest.RunResult) -> str:
    return "\n".join((*result.outlines, *result.errlines))


def test_an_idle_plugin_imports_neither_torch_nor_convtime(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_nothing():
            assert sys.modules.keys().isdisjoint({"torch", "convtime", "numpy", "pynvml"})
            assert "pytest_convtime" in sys.modules
        """
    )
    result = pytester.runpytest_subprocess(*LOADED)
    result.assert_outcomes(passed=1)
    assert "convtime:" not in output(result)
    assert not (pytester.path / ".convtime").exists()


def test_fixtures_give_what_convtimes_functions_do(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, convtime
        QUICK = dict(warmup=1, stop="count", min_samples=10, max_samples=10)

        def test_one(time_op):
            found = time_op(sorted, [2, 1], **QUICK)
            assert isinstance(found, convtime.Measurement)
            assert len(found.seconds) == 10

        def test_two(compare):
            found = compare({"a": int, "b": float}, **QUICK)
            assert isinstance(found, convtime.Comparison)
            assert list(found.measurements) == ["a", "b"]

        @pytest.mark.convtime(method="cpu", min_samples=11, max_samples=11)
        class TestMarked:
            def test_by_class(self, time_op):
                found = time_op(int, warmup=1, stop="count")
                assert (found.method.requested, len(found.seconds)) == ("cpu", 11)

            @pytest.mark.convtime(min_samples=12, max_samples=12, margin=0.1)
            def test_nearer(self, time_op, compare):
                found = time_op(int, warmup=1, stop="count")
                assert (found.method, len(found.seconds)) == ("cpu", 12)
                assert compare([int, float], warmup=1, stop="count").margin == 0.1

        @pytest.mark.parametrize("size", [1, 2])
        def test_sizes(time_op, size):
            time_op(list, range(size), **QUICK)
            time_op(list, range(size), name="named", **QUICK)
            time_op(list, range(size), **QUICK)
        """
    )
    result = run("--convtime-save", "main")
    result.assert_outcomes(passed=6)
    file = "test_fixtures_give_what_convtimes_functions_do.py::"
    names = [name.removeprefix(file) for name in saved(pytester)["measurements"]]
    assert names == [
        "test_one",
        "test_two a",
        "test_two b",
        "TestMarked::test_by_class",
        "TestMarked::test_nearer",
        "TestMarked::test_nearer int",
        "TestMarked::test_nearer float",
        *(f"test_sizes[{size}]{tail}" for size in (1, 2) for tail in ("", " named", " 2")),
    ]
    result.stdout.fnmatch_lines(["*13 measurements saved as *main.json"])


def test_in_a_run_that_is_judged_intervals_are_narrow_and_not_just_verdicts_certain(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        import os

        def pair(compare, **options):
            found = compare({"a": int, "b": float}, warmup=1, max_samples=30, **options)
            return found.measurements["b"].stop

        def test_pair(compare):
            assert pair(compare) == os.environ["STOP"]

        def test_as_it_says(compare):
            assert pair(compare, stop="verdict") == "verdict"
        """
    )
    run(STOP="verdict").assert_outcomes(passed=2)
    run("--convtime-save", "main", STOP="interval").assert_outcomes(passed=2)
    run("--convtime-against", "main", STOP="interval").assert_outcomes(passed=2)


def test_a_comparison_over_axes_is_refused(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_table(compare):
            with pytest.raises(ValueError, match="over is not for tests"):
                compare([lambda n: int, lambda n: float], over={"n": [1, 2]})
        """
    )
    run().assert_outcomes(passed=1)


def test_without_options_what_was_measured_is_shown(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*= convtime =*", "*::test_slow*"])
    assert not (pytester.path / ".convtime").exists()


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (
            "cach='warm'",
            "pytest.mark.convtime has no option 'cach'; there are method, metric, queue, cache",
        ),
        (
            "cache='hot'",
            "cache must be one of 'auto', 'cold', 'cold-clean', 'warm', 'rotate', got 'hot'",
        ),
        (
            "'warm'",
            "pytest.mark.convtime needs named options, as in convtime(cache='warm'), got 'warm'",
        ),
    ],
)
def test_markers_that_say_nothing_of_a_timing_fail(
    marker: str, said: str, run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.convtime({marker})\ndef test_it(): pass")
    result = run()
    result.assert_outcomes(errors=1)
    assert said in output(result)
    assert "Traceback" not in output(result)


@pytest.fixture
def baseline(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    assert run("--convtime-save", "main").ret == 0


@pytest.mark.usefixtures("baseline")
def test_a_gate_tells_a_slow_test_from_noise(run: Any, pytester: pytest.Pytester) -> None:
    printing = SUITE.replace(
        "def test_slow(time_op):", "def test_slow(time_op):\n    os.write(1, b'\\xff\\xfe')"
    )
    assert printing != SUITE
    pytester.makepyfile(test_it=printing)  # anything, in the second look, too
    arguments = ("--convtime-against", "main", "--convtime-fail-on", "slower:3%")
    equal = run(*arguments)
    assert equal.ret == 0
    equal.stdout.fnmatch_lines(["2 compared: 2 same; geomean 1.0000*"])
    assert "cause:" not in output(equal)

    files = ("--convtime-markdown", "changes.md", "--convtime-json", "changes.json")
    slow = run(*arguments, *files, "-s", FACTOR="1.05")
    assert slow.ret == 1
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
    assert "--convtime-relative" not in output(equal)
    assert "| slower | 1.05" in (pytester.path / "changes.md").read_text(encoding="utf-8")
    changes = json.loads((pytester.path / "changes.json").read_text(encoding="utf-8"))
    assert [change["verdict"] for change in changes["changes"]] == ["slower", "same"]
    assert run("--convtime-against", "main", FACTOR="1.05").ret == 0  # asked for nothing


@pytest.mark.usefixtures("baseline")
def test_what_a_second_look_does_not_bear_out_does_not_count(run: Any) -> None:
    arguments = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    result = run(*arguments, FACTOR="1.1", FACTOR_AGAIN="1.0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 compared: 2 same*"])
    again = run(*arguments, FACTOR="1.0", FACTOR_AGAIN="1.1")  # nobody looks
    assert again.ret == 0
    assert "running again" not in output(again)


@pytest.mark.usefixtures("baseline")
def test_a_test_that_fails_when_it_is_run_again_counts_as_it_was(
    run: Any, pytester: pytest.Pytester
) -> None:
    source = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    failing = source.replace(
        "def test_slow(time_op):",
        "def test_slow(time_op, request):\n    assert not request.config.option.convtime_again",
    )
    (pytester.path / "test_it.py").write_text(failing, encoding="utf-8")
    result = run("--convtime-against", "main", "--convtime-fail-on", "slower", FACTOR="1.1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["run again alone, *test_slow gave no time (*1 failed*"])


WHERE = """
import os, sys
sys.executable = os.environ["WARM"]  # for the second run
import package

def test_it(time_op):
    time_op(int, warmup=1, stop="count", max_samples=10)
    with open("log", "a") as log:
        log.write(f"{package.PLACE}\\n")
"""
AS_A_COMMAND = "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main())"


@pytest.mark.parametrize(
    ("start", "place"),
    [(["-m", "pytest"], "folder"), (["-c", AS_A_COMMAND], "installed")],
)
def test_a_second_run_imports_what_the_first_did(
    start: list[str],
    place: str,
    pytester: pytest.Pytester,
    warm_python: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("WARM", warm_python)
    installed = pytester.mkdir("site")
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    (installed / "package.py").write_text("PLACE = 'installed'")
    (pytester.path / "package.py").write_text("PLACE = 'folder'")
    (pytester.mkdir("tests") / "test_it.py").write_text(WHERE)
    save = ("--convtime-save=main", "--convtime-runs=2")
    done = subprocess.run(
        [warm_python, *start, *LOADED, *OTHERS, *save], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (pytester.path / "log").read_text().split() == [place, place]


def test_tests_run_again_where_a_plugin_takes_a_share_of_them(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            del items[:len(items) // 2]
        """
    )
    more = "\n\n@pytest.mark.parametrize('number', range(4))\ndef test_more(time_op, number):\n"
    pytester.makepyfile(test_it=SUITE + more + "    time_op(int)\n")
    result = run("--convtime-save", "main", "--convtime-runs=2")
    assert "gave no time" not in output(result)
    assert len(saved(pytester)["repeats"]) == 3


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    ("fail_on", "environment", "select", "code"),
    [
        ("slower", {}, "", 0),
        ("slower", {"FACTOR": "0.9"}, "", 0),
        ("slower", {"SPREAD": "0.9"}, "", 125),
        ("slower", {}, "quick", 125),
    ],
)
def test_exit_codes_for_git_bisect(
    fail_on: str, environment: dict[str, str], select: str, code: int, run: Any
) -> None:
    result = run(
        *("--convtime-against", "main", "--convtime-fail-on", fail_on, "--convtime-bisect"),
        *("-k", select),
        **environment,
    )
    assert result.ret == code


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    "other_test",
    ["import a_module_that_is_not_there", "import pytest\ndef test_it(): pytest.exit('enough')"],
)
def test_a_commit_that_cannot_be_run_is_skipped_by_git_bisect(
    other_test: str, run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_other=other_test)
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*gate).ret == pytest.ExitCode.INTERRUPTED
    assert run(*gate, "--convtime-bisect").ret == 125


def test_a_commit_whose_conftest_does_not_import_is_skipped_by_git_bisect(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest("import a_module_that_is_not_there")
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*gate).ret == pytest.ExitCode.USAGE_ERROR
    skipped = pytester.runpytest_subprocess(*LOADED, *gate, "--convtime-bisect")  # imports no torch
    assert skipped.ret == 125
    assert "convtime: inconclusive: ModuleNotFoundError: No module named" in output(skipped)


@pytest.mark.usefixtures("baseline")
def test_all_that_is_to_fail_a_run_does(run: Any) -> None:
    gate = ("--convtime-against", "main", "--convtime-bisect")
    assert run(*gate, "--convtime-fail-on", "faster,slower", FACTOR="1.1").ret == 1
    fail_on = ("--convtime-fail-on", "faster", "--convtime-fail-on", "slower")
    assert run(*gate, *fail_on, FACTOR="0.9").ret == 1


def test_more_instructions_fail_a_run_that_is_to(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    assert run("--convtime-save", "main", INSTRUCTIONS="1e6").ret == 0
    against = ("--convtime-against", "main", "--convtime-bisect", "--convtime-fail-on")
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


@pytest.mark.usefixtures("baseline")
def test_uncertain_and_missing_fail_only_where_that_is_asked(run: Any) -> None:
    against = ("--convtime-against", "main", "--convtime-fail-on")
    assert run(*against, "slower", SPREAD="0.9").ret == 0
    assert run(*against, "uncertain", SPREAD="0.9").ret == 1
    assert run(*against, "slower", "-k", "quick").ret == 0
    missing = run(*against, "missing", "-k", "quick")
    assert missing.ret == 1
    missing.stdout.fnmatch_lines(["missing *::test_slow"])


@pytest.mark.usefixtures("baseline")
def test_a_failing_test_stays_a_failing_test(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_other="def test_other(): assert False")
    arguments = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*arguments).ret == 1
    assert run(*arguments, "--convtime-bisect").ret == 125


def test_a_second_look_keeps_the_files_of_the_first(run: Any, pytester: pytest.Pytester) -> None:
    """Plugins open these with the same arguments; pytest empties the folder for temporary files."""
    writing = "\n\ndef test_writing(tmp_path):\n    (tmp_path / 'kept').touch()\n"
    writing += "    __import__('logging').warning('of the first run')\n"
    pytester.makepyfile(test_it=SUITE + writing)
    assert run("--convtime-save", "main").ret == 0
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    files = ("--basetemp=made", "--log-file=run.log", "--junitxml=run.xml", "-p", "cacheprovider")
    slow = run(*gate, *files, FACTOR="1.1")
    assert "running again alone" in output(slow)
    assert [*(pytester.path / "made").rglob("kept")]
    assert "of the first run" in (pytester.path / "run.log").read_text(encoding="utf-8")
    assert 'tests="3"' in (pytester.path / "run.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "ending", ["assert False", "pytest.xfail('known')", "request.addfinalizer(lambda: 1 / 0)"]
)
def test_the_time_of_a_test_that_does_not_pass_is_not_saved(
    ending: str, run: Any, pytester: pytest.Pytester
) -> None:
    failing = f"\n\ndef test_failing(time_op, request):\n    time_op(int)\n    {ending}\n"
    pytester.makepyfile(test_it=SUITE + failing)
    for workers in ([], ["-n1"]):
        result = run("--convtime-save", "main", *workers)
        assert result.ret == (0 if "xfail" in ending else 1)
        assert [*saved(pytester)["measurements"]] == [
            "test_it.py::test_slow",
            "test_it.py::test_quick",
        ]


def test_times_of_a_worker_that_dies_later_are_kept(run: Any, pytester: pytest.Pytester) -> None:
    dying = "\n\ndef test_dying(time_op):\n    time_op(int)\n    os._exit(1)\n"
    pytester.makepyfile(test_it=SUITE + dying)
    assert run("-n1", "--convtime-save", "main").ret == 1
    assert [*saved(pytester)["measurements"]] == SAVED


def test_a_run_of_some_tests_keeps_the_others_baselines(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=SUITE)
    assert run("--convtime-save", "main").ret == 0
    before = saved(pytester)["measurements"]
    assert run("--convtime-save", "main", "-k", "slow", FACTOR="2").ret == 0
    after = saved(pytester)["measurements"]
    assert after["test_it.py::test_quick"] == before["test_it.py::test_quick"]
    assert after["test_it.py::test_slow"]["seconds"] != before["test_it.py::test_slow"]["seconds"]


@pytest.mark.usefixtures("baseline")
def test_the_last_line_of_a_gate_is_its_verdict(run: Any) -> None:
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower,missing", "--color=yes")
    failed = run(*gate, FACTOR="1.1").outlines[-1]
    assert failed.startswith("\x1b[31m\x1b[1m")  # red and bold
    assert "failed: slower: test_it.py::test_slow (1.100, margin 3.0%, " in failed
    assert "failed: missing: test_it.py::test_quick" in run(*gate, "-k", "slow").outlines[-1]
    passed = run(*gate)
    assert passed.ret == 0
    assert "convtime: passed: 2 compared, none missing or slower" in passed.outlines[-1]
    unknown = run(*gate, "--convtime-bisect", SPREAD="0.9")
    assert "inconclusive: exit code 125" in unknown.outlines[-1]
    assert "convtime:" not in run("--convtime-against", "main").outlines[-1]  # nothing was asked


@pytest.mark.usefixtures("baseline")
def test_the_markdown_begins_with_verdict_and_environment(
    run: Any, pytester: pytest.Pytester
) -> None:
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    run(*gate, "--convtime-markdown", "it.md", FACTOR="1.1")
    headline, _, environment, *_ = (pytester.path / "it.md").read_text("utf-8").splitlines()
    assert headline.startswith("**failed: slower: test\\_it.py::test\\_slow")
    assert "torch 2" in environment
    run(*gate, "--convtime-markdown", "it.md")
    assert (pytester.path / "it.md").read_text("utf-8").startswith("**passed: 2 compared")


def test_a_run_under_load_is_not_part_of_the_baseline(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    first = run("--convtime-save", "main", "--convtime-runs=3", FACTOR="1.4", FACTOR_AGAIN="1")
    assert "run 1 is outlying and does not count for test_it.py::test_slow (1.40×)" in output(first)
    later = run("--convtime-against", "main", "--convtime-fail-on", "faster,slower")
    assert later.ret == 0
    later.stdout.fnmatch_lines(["2 compared: 2 same*"])


def test_a_finding_is_confirmed_with_both_commits(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_python: str
) -> None:
    """Both take longer now, so that the code has not changed; the folder has the later code."""
    monkeypatch.setattr(convtime.integrations.pytest_gate, "_ROUNDS", 1)
    monkeypatch.setattr(pytest_convtime, "_FOLDER_IS_FIRST", True)
    state = "'folder' if os.getcwd() in sys.path else '', 'PYTHONSAFEPATH' in os.environ"
    logging = f"\nimport sys\nprint({state}, file=open('log', 'a'))\n"
    (pytester.mkdir("tests") / "test_it.py").write_text(SUITE + logging)
    assert run("--convtime-save", "main").ret == 0
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*gate, FACTOR="1.1").ret == 1
    base = shutil.copy(warm_python, pytester.path / "python")
    both = run(*gate, f"--convtime-base={base}", FACTOR="1.1")
    assert both.ret == 0
    both.stdout.fnmatch_lines(["2 compared: 2 same*"])
    log = (pytester.path / "log").read_text(encoding="utf-8").splitlines()
    assert log[-2:] == [" False", "folder False"]


def test_the_folders_commit_is_not_that_of_a_base(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(
        gate: Gate, _: Collection[str], python: str | None = None, **_found: bool
    ) -> tuple[Any, str]:
        side = gate._run if python != gate._base_python or python is None else gate._baseline
        return dict(side.measurements), ""

    monkeypatch.setattr(Gate, "_run_again", again)
    pytester.makepyfile(test_it=SUITE)
    (pytester.path / ".gitignore").write_text("*")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (["init", "-q"], [*identity, "commit", "-qm", "first", "--allow-empty"]):
        subprocess.run(["git", *command], check=True)
    assert run("--convtime-save", "main").ret == 0
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*gate, FACTOR="1.1").outlines[-1].endswith("test_slow (1.100, margin 3.0%, noise)")
    both = run(*gate, f"--convtime-base={sys.executable}", FACTOR="1.1")
    assert both.outlines[-1].endswith("test_slow (1.100, margin 3.0%, code)")
    assert "cause: code: commit: the base's → " in output(both)


def test_a_base_that_imports_the_heads_code_is_refused(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_python: str
) -> None:
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
    assert run("--convtime-save", "main").ret == 0
    base = shutil.copy(warm_python, pytester.path / "python")
    gate = ("--convtime-against=main", "--convtime-fail-on=slower", f"--convtime-base={base}")
    result = run(*gate)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"must measure package as installed in {site}, but imports it from {pytester.path}, "
    assert said in result.outlines[-1]
    assert run(*gate, "--import-mode=importlib").ret == 0


def test_calibrated_tests_have_their_own_margins(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    calibrated = run("--convtime-save", "main", "--convtime-calibrate", "5")
    assert calibrated.ret == 0
    noise = saved(pytester)["repeats"]["test_it.py::test_slow"]["noise"]
    assert noise["processes"] == 5
    assert 0 < noise["margin"] < 0.015  # all processes read the same times
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    slower = run(*gate, "--convtime-bisect", FACTOR="1.02")
    assert slower.ret == 1
    assert f"test_slow (1.020, margin {noise['margin']:.1%}, " in slower.outlines[-1]
    assert run(*gate, "--convtime-bisect").ret == 0
    assert (
        run("--convtime-against", "main", "--convtime-fail-on", "slower:3%", FACTOR="1.02").ret == 0
    )


def test_a_test_that_is_not_calibrated_is_named(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(gate: Gate, tests: Collection[str]) -> tuple[dict[str, Measurement], str]:
        slow, quick = SAVED
        first = gate._run.measurements
        return {slow: dataclasses.replace(first[quick], name=slow), quick: first[quick]}, ""

    monkeypatch.setattr(Gate, "_run_again", again)
    pytester.makepyfile(test_it=SUITE)
    result = run("--convtime-save=main", "--convtime-calibrate", "5", FACTOR="1.4")
    said = (
        "not calibrated, so that the common margin counts: test_it.py::test_slow (4 runs left); "
        "at least 5 are needed: calibrate with more runs"
    )
    assert said in result.outlines
    found = convtime.exchange.files.read_baseline(pytester.path / ".convtime" / "main.json")
    assert said in str(found)
    single = Baseline(found.measurements)
    assert [*remarks(single)] == []
    (none,) = remarks(single, calibrated=True)
    assert "test_it.py::test_slow (1 run left), test_it.py::test_quick (1 run left); at" in none


PAIR = """
def test_slow_pair(compare):
    assert compare({"quick": int, "call": int}, check=None).baseline == "quick"
"""


def test_beside_a_baseline_only_the_ratio_counts(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE + PAIR)
    assert run("-k", "pair", "--convtime-save", "pair").ret == 0
    assert [name.rpartition(" ")[2] for name in saved(pytester, "pair")["measurements"]] == [
        "quick",
        "call",
    ]
    by_time = run("-k", "pair", "--convtime-against", "pair", FACTOR="1.1")
    by_time.stdout.fnmatch_lines(["2 compared: 2 slower*"])

    against = [
        *("-k", "pair", "--convtime-against", "pair"),
        *("--convtime-relative", "--convtime-fail-on", "slower:3%"),
    ]
    alike = run(*against, FACTOR="1.1")
    assert alike.ret == 0
    alike.stdout.fnmatch_lines(["1 compared: 1 same*", "*baseline *::test_slow_pair quick: *"])
    slower = run(*against, FACTOR="0.9", CALL_FACTOR="1.05")
    assert slower.ret == 1
    slower.stdout.fnmatch_lines(["1 compared: 1 slower*", "slower *::test_slow_pair call*"])
    assert "found twice, first as 1.05" in output(slower)


def test_another_result_fails_where_that_is_asked(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_pair(compare):
            compare({"a": lambda: torch.zeros(2), "b": lambda: torch.ones(2)}, max_samples=10)
        """
    )
    assert run("--convtime-save", "main").ret == 0
    result = run("--convtime-fail-on", "different")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["different: *::test_pair b: *"])

    files = ("--convtime-markdown", "changes.md", "--convtime-json", "changes.json")
    result = run("--convtime-against", "main", "--convtime-fail-on", "different", *files)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["different: *::test_pair b: *"])
    assert "- different: test" in (pytester.path / "changes.md").read_text(encoding="utf-8")
    changes = json.loads((pytester.path / "changes.json").read_text(encoding="utf-8"))
    (name,) = changes["different"]
    assert name.endswith("::test_pair b")


@pytest.mark.parametrize("ending", ["pytest.xfail('known')", "pytest.skip('known')"])
def test_another_result_does_not_count_in_a_test_that_does_not_pass(
    ending: str, run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        f"""
        import pytest, torch
        def test_pair(compare):
            compare({{"a": lambda: torch.zeros(2), "b": lambda: torch.ones(2)}}, max_samples=10)
            {ending}
        """
    )
    result = run("--convtime-fail-on", "different")
    assert result.ret == 0
    assert "different:" not in output(result)


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


def test_under_xdist_workers_take_turns_and_all_they_measure_is_saved_and_judged(
    run: Any, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile(test_it=SUITE, test_other=SUITE.replace("test_quick", "test_third"))
    assert run("--convtime-save", "main").ret == 0
    pytester.makepyfile(test_turns=TURNS)
    arguments = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    slow = run("-n2", *arguments, "--convtime-save=now", FACTOR="1.1", XDG_STATE_HOME=str(tmp_path))
    assert slow.ret == 1
    slow.stdout.fnmatch_lines(
        ["*2 found, running again alone", "8 compared: 2 slower, 2 same, 4 new*"]
    )
    before, now = (set(saved(pytester, name)["measurements"]) for name in ("main", "now"))
    assert now - before == {f"test_turns.py::test_it[{number}]" for number in range(4)}
    assert before < now
    assert (tmp_path / "convtime" / "timing-cpu.lock").exists()
    calls = (pytester.path / "log").read_text().split()
    changes = sum(one != other for one, other in itertools.pairwise(calls))
    assert changes == 3
    assert "timed nothing: pytest-benchmark disables itself under xdist" in output(slow)


CONVOLUTION = SUITE.replace("time_op(int)", "time_op(torch.conv2d, X, W, kwargs={'padding': 1})")


def test_convolutions_that_are_found_come_with_their_reproducer(
    run: Any, pytester: pytest.Pytester
) -> None:
    data = "import torch\nX, W = torch.ones(1, 2, 5, 6), torch.ones(3, 2, 3, 3)\n"
    pytester.makepyfile(test_it=data + CONVOLUTION)
    assert run("--convtime-save", "main").ret == 0
    slow = run("--convtime-against", "main", "--convtime-fail-on", "slower", FACTOR="1.1")
    assert slow.ret == 1
    line = "again: convtime conv conv2d:n1c2h5w6k3r3s3p1:float32:nchw"
    slow.stdout.fnmatch_lines([f"*{line}"])
    pytester.makepyfile(
        test_it=data
        + """
def test_pair(compare):
    same = lambda: torch.conv2d(X, W)
    compare({"a": same, "b": lambda: 1 + same()}, max_samples=10)
"""
    )
    different = run("--convtime-fail-on", "different")
    assert different.ret == 1
    line = "again: convtime conv conv2d:n1c2h5w6k3r3s3:float32:nchw"
    different.stdout.fnmatch_lines([f"different: *::test_pair b: *{line}"])


BENCHMARKED = """
import pytest

@pytest.mark.benchmark(group="sorting", max_time=0.01, min_rounds=7)
@pytest.mark.parametrize("count", [10, 100])
def test_sort(gpu_benchmark, count):
    gpu_benchmark.extra_info["count"] = count
    assert gpu_benchmark(sorted, list(range(count)), key=lambda x: -x)[0] == count - 1
    assert gpu_benchmark.stats.stats.rounds >= 7
"""


def test_gpu_benchmark_feeds_pytest_benchmark(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BENCHMARKED)
    result = run("--benchmark-json=all.json", "--benchmark-save=first")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*benchmark 'sorting': 2 tests*"])
    document = json.loads((pytester.path / "all.json").read_text(encoding="utf-8"))
    assert "torch" in document["machine_info"]
    for benchmark, count in zip(document["benchmarks"], (10, 100), strict=True):
        info = benchmark["extra_info"]
        assert benchmark["params"] == {"count": count}
        assert (info["count"], info["method"], info["device"]) == (count, "cpu", "cpu")
        assert benchmark["stats"]["data"] == info["convtime"]["seconds"]
        assert len(info["median_interval"]) == 2
    compared = run("--benchmark-compare", "--benchmark-compare-fail=median:99999%")
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*test_sort?10? (NOW)*"])
    # A whole number of its files can be compared with, too.
    ours = run("--convtime-against", "all.json")
    assert ours.ret == 0
    assert "2 compared" in output(ours)


@pytest.mark.skipif(not _DRAWS_HISTOGRAMS, reason="could not import 'pygal'")
def test_histograms_are_drawn_of_our_samples(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(gpu_benchmark): gpu_benchmark.pedantic(int, rounds=7)")
    run("--benchmark-histogram=drawn").assert_outcomes(passed=1)
    assert "test_one - 7 rounds" in (pytester.path / "drawn.svg").read_text(encoding="utf-8")


def test_machine_info_names_gpus_and_driver(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    for name, answer in answers.items():
        monkeypatch.setitem(gpu._OTHERS, name, answer)
    monkeypatch.setitem(gpu.answers, "Name", "NVIDIA H200")
    info: dict[str, Any] = {}
    pytest_convtime._WithPytestBenchmark().pytest_benchmark_update_machine_info(info)
    assert info["gpus"] == ["NVIDIA H200"] * 2
    assert info["gpu_driver"] == "580.1"
    monkeypatch.setitem(gpu.failures, "Init", gpu.NVMLError_DriverNotLoaded())
    assert pytest_convtime._gpus() == {}


@pytest.mark.cuda
def test_gpu_benchmark_has_the_devices_own_times(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_relu(gpu_benchmark):
            gpu_benchmark(torch.relu, torch.randn(1 << 20, device="cuda"))
        """
    )
    result = run("--benchmark-json=all.json", "--convtime-save=main")
    result.assert_outcomes(passed=1)
    document = json.loads((pytester.path / "all.json").read_text(encoding="utf-8"))
    (benchmark,) = document["benchmarks"]
    info = benchmark["extra_info"]
    assert (info["method"], info["cache"]) == ("kernel", "cold")
    assert info["gpu"] in document["machine_info"]["gpus"]
    assert 500 < info["sm_clock_mhz"] < 5000
    assert 1e-6 < benchmark["stats"]["median"] < 1e-4
    again = run("--convtime-against=main", "--convtime-fail-on=slower:10%,missing")
    assert again.ret == 0


@pytest.mark.cuda
def test_under_xdist_timings_on_a_gpu_take_turns(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        @pytest.mark.parametrize("number", range(4))
        def test_it(time_op, number):
            assert time_op(torch.relu, torch.randn(1 << 20, device="cuda")).exclusive
        """
    )
    run("-n2").assert_outcomes(passed=4)


def test_pedantic_is_as_its_users_know_it(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_counts(gpu_benchmark):
            calls = []
            assert gpu_benchmark.pedantic(calls.append, (1,), rounds=8, iterations=3) is None
            assert gpu_benchmark.stats.stats.rounds == 8
            assert gpu_benchmark.stats.iterations == 3
            assert len(calls) >= 24

        def test_setup(gpu_benchmark):
            made, torn = [], []
            def setup():
                made.append([3, 1, 2])
                return (made[-1],), {"reverse": True}
            def target(values, reverse):
                assert values == [3, 1, 2]
                values.sort(reverse=reverse)
                return values
            def teardown(values, reverse):
                assert values == [3, 2, 1]
                torn.append(values)
            found = gpu_benchmark.pedantic(target, setup=setup, teardown=teardown, rounds=9)
            assert found == [3, 2, 1]
            assert gpu_benchmark.stats.stats.rounds == 9
            assert torn == made

        def test_arguments_twice(gpu_benchmark):
            with pytest.raises(TypeError, match="must not return arguments"):
                gpu_benchmark.pedantic(int, ("1",), setup=lambda: (("2",), {}), rounds=2)

        def test_wrong(gpu_benchmark):
            with pytest.raises(ValueError, match="rounds must be a whole number, 1 or more, got 0"):
                gpu_benchmark.pedantic(int, rounds=0)
            with pytest.raises(ValueError, match="iterations must be 1 if there is a setup"):
                gpu_benchmark.pedantic(int, setup=int, rounds=1, iterations=2)
            gpu_benchmark(int)
            with pytest.raises(RuntimeError, match="used only once in a test"):
                gpu_benchmark(int)
        """
    )
    result = run()
    result.assert_outcomes(passed=4)


def test_gpu_benchmark_can_be_switched_off_as_benchmark_can(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(gpu_benchmark): assert gpu_benchmark(int, '7') == 7")
    run("--benchmark-disable").assert_outcomes(passed=1)
    run("--benchmark-skip").assert_outcomes(skipped=1)
    without = run("-p", "no:benchmark")
    without.assert_outcomes(errors=1)
    assert "pytest-benchmark, which is not installed or is disabled" in output(without)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--convtime-fail-on", "slow"],
            "must be some of slower, faster, uncertain",
        ),
        (["--convtime-fail-on", "slower:3"], "got 'slower:3'"),
        (["--convtime-fail-on", "slower:300%"], "got 'slower:300%'"),
        (["--convtime-fail-on", "missing:3%"], "got 'missing:3%'"),
        (["--convtime-fail-on", "slower:3%,faster:5%"], "one margin for slower and faster"),
        (
            ["--convtime-fail-on", "more-instructions:1%,more-instructions:2%"],
            "one margin for more-instructions",
        ),
        (["--convtime-fail-on", "slower"], "--convtime-fail-on slower needs --convtime-against"),
        (["--convtime-fail-on", "contradictory"], "contradictory needs --convtime-against"),
        (["--convtime-bisect"], "--convtime-bisect needs --convtime-against"),
        (["--convtime-bisect", "--convtime-against=a"], "--convtime-bisect needs --convtime-fail"),
        (["--convtime-base", sys.executable], "--convtime-base needs --convtime-against"),
        (["--convtime-calibrate", "9"], "--convtime-calibrate needs --convtime-save NAME"),
        (["--convtime-calibrate", "4"], "must be a number of runs, 5 or more, got 4"),
        (["--convtime-save=a", "--convtime-calibrate=5", "-n1"], "leave out -n"),
        (["--convtime-runs", "0"], "must be a number of runs, 1 or more, got 0"),
        (["--convtime-save", "a/b"], "must be a name of letters, digits"),
        (["--convtime-against", "none"], "saved runs are none; save one with"),
        (["--convtime-against", 300 * "n"], "saved runs are none; save one with"),
        (["--convtime-same-gpu", "name"], "invalid choice: 'name'"),
        (["--convtime-sav", "x"], "unrecognized arguments: --convtime-sav"),
    ],
)
def test_options_that_cannot_be_are_told(
    arguments: list[str], said: str, run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in output(result)
    assert "Traceback" not in output(result)


def test_a_path_that_changes_the_rootdir_is_refused(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, history = pytester.mkdir("project"), pytester.mkdir("history")
    (project / "test_it.py").write_text("def test_it(): pass")
    monkeypatch.chdir(project)
    refused = run("--convtime-history", "../history")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    said = f"chose the rootdir {history.parent} by it; write --convtime-history=../history"
    assert said in output(refused)
    assert run("--convtime-history=../history").ret == 0


def test_names_of_saved_runs_are_told_where_one_is_missing(run: Any, baseline: None) -> None:
    assert "saved runs are main; save one" in output(run("--convtime-against", "mian"))


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"schema": "1.0", "measurements": {"a"',
        "[" * 100_000,
        "[1, 2]",
        '{"measurements": {"<script>": {"schema": "4.2"}}}',
        '{"schema": "1.0", "measurements": {"a": {"schema": "9.0", "seconds": [1]}}}',
        '{"seconds": [1e999]}',
        '{"seconds": [NaN]}',
        '{"seconds": [1' + 5000 * "0" + "]}",
    ],
)
def test_files_that_are_no_run_are_refused_before_any_test(
    content: str, run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(): open('ran', 'w')")
    (pytester.path / "other.json").write_text(content)
    result = run("--convtime-against", "other.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in output(result).splitlines() if line.startswith("ERROR: ")]
    assert len(errors) == 1
    assert "other.json" in errors[0]
    assert "Traceback" not in output(result)
    assert not (pytester.path / "ran").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told_before_any_test(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(): pass")
    (pytester.path / ".convtime").mkdir(mode=0o500)
    assert "cannot be written" in output(run("--convtime-save", "main"))


def test_a_file_in_the_folders_place_is_told(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): open('ran', 'w')")
    (pytester.path / ".convtime").touch()
    result = run("--convtime-save", "main")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "runs cannot be saved there (File exists)" in output(result)
    assert not (pytester.path / "ran").exists()


@pytest.mark.usefixtures("baseline")
def test_a_baseline_that_is_read_only_is_kept(run: Any, pytester: pytest.Pytester) -> None:
    before = saved(pytester)
    (pytester.path / ".convtime" / "main.json").chmod(0o444)
    result = run("--convtime-save", "main", FACTOR="2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "main.json: cannot be written, since it is read-only" in output(result)
    assert saved(pytester) == before


@pytest.mark.usefixtures("baseline")
def test_a_run_that_measures_nothing_or_is_interrupted_keeps_what_was_saved(
    run: Any, pytester: pytest.Pytester
) -> None:
    before = saved(pytester)
    nothing = run("--convtime-save", "main", "-k", "nothing")
    assert "nothing was measured: " in output(nothing)
    gate = ("--convtime-save=main", "--convtime-against=main", "--convtime-fail-on=slower")
    for ending, options, code in (
        ("pytest.exit('enough')", (), pytest.ExitCode.INTERRUPTED),
        ("pytest.exit('enough', returncode=0)", (), pytest.ExitCode.OK),
        ("assert False", ("--maxfail=1",), pytest.ExitCode.TESTS_FAILED),
    ):
        pytester.makepyfile(test_later=f"import pytest\ndef test_later(): {ending}")
        stopped = run(*gate, *options, FACTOR="2")
        assert stopped.ret == code
        assert stopped.outlines[-1] == "convtime: inconclusive: the run stopped early"
        assert saved(pytester) == before


@pytest.mark.usefixtures("baseline")
def test_what_another_run_saves_meanwhile_is_kept(run: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / ".convtime" / "main.json").rename(pytester.path / "other.json")
    saving = "\n    os.rename('other.json', '.convtime/main.json')"
    pytester.makepyfile(
        test_it=SUITE.replace("def test_slow(time_op):", f"def test_slow(time_op):{saving}")
    )
    assert run("--convtime-save", "main", "-k", "slow").ret == 0
    assert {*saved(pytester)["measurements"]} == {*SAVED}


@pytest.mark.usefixtures("baseline")
def test_a_gate_that_cannot_write_its_files_has_failed(run: Any, pytester: pytest.Pytester) -> None:
    pytester.mkdir("out")
    pytester.makepyfile(test_last="def test_last(): __import__('shutil').rmtree('out')")
    result = run("--convtime-against=main", "--convtime-json=out/it", "--color=yes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.outlines[-1].startswith("\x1b[31m")  # red
    assert "convtime: failed: " in result.outlines[-1]
    assert "out/it: cannot be written" in result.outlines[-1]


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="subtests need pytest 9")
def test_a_skipped_subtest_leaves_its_tests_times(run: Any, pytester: pytest.Pytester) -> None:
    skipping = """
def test_parts(time_op, subtests):
    time_op(int)
    with subtests.test():
        pytest.skip("this part")
"""
    pytester.makepyfile(test_it=SUITE + skipping)
    assert run("--convtime-save", "main").ret == 0
    assert [*saved(pytester)["measurements"]] == [*SAVED, "test_it.py::test_parts"]


def test_a_history_gets_a_file_for_each_run(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    folder = pytester.path / "times" / "history"
    for _ in range(2):
        told = output(run("--convtime-history", "times/history"))
        assert f"2 measurements added as {folder}/" in told
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        assert [row[0] for row in document["times"]] == [
            *("test_it.py::test_slow", "test_it.py::test_quick")
        ]
        assert [row[1] for row in document["times"]] == pytest.approx([1e-3] * 2, rel=0.02)
    nothing = run("--convtime-history", "times/history", "-k", "nothing")
    assert "nothing was measured: " in output(nothing)
    pytester.makepyfile(test_later="import pytest\ndef test_later(): pytest.exit('enough')")
    assert "the run stopped early: " in output(run("--convtime-history", "times/history"))
    assert sorted(folder.iterdir()) == files


def test_a_history_that_is_no_folder_is_told_before_any_test(
    run: Any, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(): open('ran', 'w')")
    (pytester.path / "file").touch()
    result = run("--convtime-history", "file")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "is not a folder for a history (File exists)" in output(result)
    assert not (pytester.path / "ran").exists()


@pytest.mark.usefixtures("baseline")
def test_a_failed_run_takes_no_times_from_what_was_saved(
    run: Any, pytester: pytest.Pytester
) -> None:
    before = saved(pytester)
    pytester.makepyfile(test_it=SUITE.replace("time_op(int)\n", "assert False\n"))
    failed = run("--convtime-save", "main", FACTOR="2")
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    failed.stdout.fnmatch_lines(
        ["*main.json; 1 of tests that did not run or did not pass are kept"]
    )
    quick = "test_it.py::test_quick"
    after = saved(pytester)["measurements"]
    assert after[quick] == before["measurements"][quick]
    assert after["test_it.py::test_slow"] != before["measurements"]["test_it.py::test_slow"]
    assert run("--convtime-save", "other", FACTOR="2").ret == pytest.ExitCode.TESTS_FAILED
    assert len(saved(pytester, "other")["measurements"]) == 1


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    "files",
    [
        ("--convtime-json", "out", "--convtime-markdown", "./out"),
        ("--convtime-json", ".convtime/main.json"),
        ("--convtime-json", ".convtime/new.json", "--convtime-save", "new"),
    ],
)
def test_no_output_takes_the_place_of_another_file_of_the_run(
    files: tuple[str, ...], run: Any, pytester: pytest.Pytester
) -> None:
    before = saved(pytester)
    result = run("--convtime-against", "main", *files)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "must name different files" in output(result)
    assert saved(pytester) == before


def test_each_measurement_has_a_name_of_its_own(pytester: pytest.Pytester) -> None:
    recorder = pytest_convtime.Recorder(pytester.parseconfig())
    one = convtime.time_op(int, warmup=1, stop="count", max_samples=10)
    recorder.record("test", "sustained", one)
    assert [recorder.record("test", None, one) for _ in range(2)] == ["test", "test 2"]
    assert [*recorder.measurements] == ["test sustained", "test", "test 2"]
    assert recorder.tests.keys() == recorder.measurements.keys()


@pytest.mark.usefixtures("baseline")
def test_other_gpus_are_not_judged(run: Any, pytester: pytest.Pytester) -> None:
    document = saved(pytester)
    for fields in document["measurements"].values():
        fields["provenance"]["cpu"] = "another CPU"
    (pytester.path / "other.json").write_text(json.dumps(document))
    result = run("--convtime-against", "other.json", "--convtime-fail-on", "slower", FACTOR="2")
    assert result.ret == 0
    assert "2 uncertain" in output(result)
    assert "measured on another CPU (cpu: another CPU → " in output(result)
    bisect = run(
        "--convtime-against", "other.json", "--convtime-fail-on=slower", "--convtime-bisect"
    )
    assert bisect.ret == 125
    judged = run("--convtime-against=other.json", "--convtime-fail-on=slower", "--color=yes")
    assert "convtime: inconclusive: none of 2 could be compared" in judged.outlines[-1]
    assert judged.outlines[-1].startswith("\x1b[33m")  # yellow
    missing = run("--convtime-against=other.json", "--convtime-fail-on=missing")
    assert missing.outlines[-1] == "convtime: passed: 0 of 2 compared, none missing"
    *_, known = saved(pytester)["measurements"].items()
    document["measurements"] |= [known]
    (pytester.path / "other.json").write_text(json.dumps(document))
    some = run("--convtime-against", "other.json", "--convtime-fail-on", "slower")
    assert some.outlines[-1] == "convtime: passed: 1 of 2 compared, none slower"


def test_the_wheel_names_the_plugin() -> None:
    """Where it is installed: by its entry point, and beside the package."""
    if not _IS_INSTALLED:
        pytest.skip("convtime is not installed")
    script = "from importlib.util import find_spec as f; "
    script += "print(f('pytest_convtime').origin, f('convtime').origin)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    plugin, package = map(Path, done.stdout.split())
    assert plugin.parent == package.parent.parent


@pytest.mark.parametrize(
    "source", ["docs/guides/regression-tests.md", "examples/ci/gpu.yml", "examples/ci/cpu.yml"]
)
def test_documents_and_examples_name_options_that_there_are(
    source: str, run: Any, pytester: pytest.Pytester
) -> None:
    text = (ROOT / source).read_text(encoding="utf-8")
    named = set(re.findall(r"--convtime-[a-z-]+", text))
    assert len(named) >= 4
    assert named <= set(re.findall(r"--convtime-[a-z-]+", output(run("--help"))))
    for value in re.findall(r"--convtime-fail-on ([a-z0-9:%,-]+)", text):
        pytester.makepyfile("def test_it(): pass")
        told = output(run("--convtime-fail-on", value))
        assert "needs --convtime-against" in told  # and nothing else is wrong with it


@pytest.mark.parametrize("workflow", ["cpu.yml", "gpu.yml"])
def test_workflows_calibrate_and_confirm_with_both_commits(workflow: str) -> None:
    text = (ROOT / "examples" / "ci" / workflow).read_text(encoding="utf-8")
    assert "--convtime-calibrate" in text
    assert "--convtime-base=" in text
    assert "%" not in "".join(re.findall(r"--convtime-fail-on (\S+)", text))  # each test's own
    assert ("--convtime-relative" in text) == (workflow == "cpu.yml")
