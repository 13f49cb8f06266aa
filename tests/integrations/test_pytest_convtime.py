"""The pytest plugin's fixtures, markers and options, by tests of tests."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.integrations.conftest import LOADED, Runs, output

pytest_plugins = "pytester"

_IS_INSTALLED = any(
    entry.value == "pytest_convtime" for entry in importlib.metadata.entry_points(group="pytest11")
)


def test_an_idle_plugin_imports_neither_torch_nor_convtime(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' plugins may import them
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


def test_fixtures_give_what_convtimes_functions_do(run: Runs, pytester: pytest.Pytester) -> None:
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

        def test_table(compare):
            with pytest.raises(ValueError, match="over is not for tests"):
                compare([lambda n: int, lambda n: float], over={"n": [1, 2]})
        """
    )
    result = run("--convtime-save", "main")
    result.assert_outcomes(passed=7)
    file = "test_fixtures_give_what_convtimes_functions_do.py::"
    names = [name.removeprefix(file) for name in run.saved()["measurements"]]
    assert names == [
        *("test_one", "test_two a", "test_two b", "TestMarked::test_by_class"),
        *(f"TestMarked::test_nearer{tail}" for tail in ("", " int", " float")),
        *(f"test_sizes[{size}]{tail}" for size in (1, 2) for tail in ("", " named", " 2")),
    ]
    result.stdout.fnmatch_lines(["*13 measurements saved as *main.json"])
    unsaved = run("-k", "test_one")
    unsaved.stdout.fnmatch_lines(["*= convtime =*", "*::test_one*"])


def test_in_a_run_that_is_judged_intervals_are_narrow_and_not_just_verdicts_certain(
    run: Runs,
) -> None:
    run.pytester.makepyfile(
        """
        import os
        import pytest
        from convtime.timing.sampling import measure as sampling

        @pytest.mark.parametrize("options", [{}, {"stop": "verdict"}])
        def test_pair(compare, monkeypatch, options):
            stops = []

            def measure(candidates, options, **_):
                stops.append(options.stop)
                raise InterruptedError

            monkeypatch.setattr(sampling, "measure", measure)
            with pytest.raises(InterruptedError):
                compare({"a": int, "b": float}, check=None, **options)
            assert stops == [options.get("stop", os.environ["STOP"])]
        """
    )
    run(STOP="verdict").assert_outcomes(passed=2)
    run("--convtime-save=main", STOP="interval").assert_outcomes(passed=2)


def test_markers_that_say_nothing_of_a_timing_fail(run: Runs) -> None:
    told = {
        "cach='warm'": "has no option 'cach'; there are method, metric, queue, cache",
        "cache='hot'": "cache must be one of 'auto', 'cold', 'cold-clean', 'warm', 'rotate', got",
        "'warm'": "needs named options, as in convtime(cache='warm'), got 'warm'",
    }
    tests = [
        f"@pytest.mark.convtime({marker})\ndef test_{number}(): pass"
        for number, marker in enumerate(told)
    ]
    run.pytester.makepyfile("\n".join(["import pytest", *tests]))
    result = run()
    result.assert_outcomes(errors=3)
    assert all(said in output(result) for said in told.values())
    assert "Traceback" not in output(result)


def test_options_that_cannot_be_are_told(run: Runs) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--convtime-fail-on", "slow"], "must be some of slower, faster, uncertain"),
        (["--convtime-fail-on", "slower:300%"], "got 'slower:300%'"),
        (["--convtime-fail-on", "missing:3%"], "got 'missing:3%'"),
        (["--convtime-fail-on", "slower:3%,faster:5%"], "one margin for slower and faster"),
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
        (["--convtime-same-gpu", "name"], "invalid choice: 'name'"),
    ]
    run.pytester.makepyfile("def test_it(): pass")
    for arguments, said in cases:
        result = run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in output(result)
        assert "Traceback" not in output(result)


def test_a_path_that_changes_the_rootdir_is_refused(
    run: Runs, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, history = pytester.mkdir("project"), pytester.mkdir("history")
    (project / "test_it.py").write_text("def test_it(): pass")
    monkeypatch.chdir(project)
    refused = run("--convtime-history", "../history")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    said = f"chose the rootdir {history.parent} by it; write --convtime-history=../history"
    assert said in output(refused)
    assert run("--convtime-history=../history").ret == 0


@pytest.mark.thorough
def test_a_commit_whose_conftest_does_not_import_is_skipped_by_git_bisect(
    run: Runs, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest("import a_module_that_is_not_there")
    gate = ("--convtime-against", "main", "--convtime-fail-on", "slower")
    assert run(*gate).ret == pytest.ExitCode.USAGE_ERROR
    skipped = pytester.runpytest_subprocess(*LOADED, *gate, "--convtime-bisect")  # imports no torch
    assert skipped.ret == 125
    assert "convtime: inconclusive: ModuleNotFoundError: No module named" in output(skipped)


@pytest.mark.thorough
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
    source: str, run: Runs, pytester: pytest.Pytester
) -> None:
    text = (ROOT / source).read_text(encoding="utf-8")
    named = set(re.findall(r"--convtime-[a-z-]+", text))
    assert len(named) >= 4
    assert named <= set(re.findall(r"--convtime-[a-z-]+", output(run("--help"))))
    for value in re.findall(r"--convtime-fail-on ([a-z0-9:%,-]+)", text):
        pytester.makepyfile("def test_it(): pass")
        told = output(run("--convtime-fail-on", value))
        assert "needs --convtime-against" in told  # and nothing else is wrong with it
