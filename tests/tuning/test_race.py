"""race: what it takes, on a CPU, in child processes, from the command line and on a GPU."""

import dataclasses
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import convtime
from convtime import Candidate, Race, race
from convtime.cli import main
from convtime.timing.options import RaceOptions, options_of
from convtime.tuning import isolation
from convtime.tuning.race import _Timer
from convtime.tuning.race_result import Dropped
from tests.helpers import ROOT, racers
from tests.helpers.simulated_races import SimulatedTimer, run

X = torch.randn(1 << 14)


@pytest.fixture(autouse=True)
def child_processes_find_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the current folder is: they import the candidates of tests.helpers."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize(
    ("candidates", "options", "error", "message"),
    [
        ({}, {}, ValueError, "at least two candidates to race, got none"),
        ({"a": len}, {}, ValueError, "got 'a' alone; time_op times it"),
        ([len, 3], {}, TypeError, "must be callable, got int"),
        ("ab", {}, TypeError, "in a mapping by name or in a sequence"),
        ([len, len], {"margin": 0.02}, ValueError, "above 0 and at most 0.01, got 0.02"),
        ([len, len], {"budget": -1}, ValueError, "budget must be a number above 0, got -1"),
        ([len, len], {"timeout": "x"}, ValueError, "timeout must be a number above 0"),
        ([len, len], {"isolated": 1}, ValueError, "isolated must be True or False"),
        ([len, len], {"stop": "count"}, TypeError, "race has no option 'stop'"),
        ([len, len], {"isolated": True, "log": print}, ValueError, "leave out stream and log"),
        ([lambda: 1, lambda: 1], {"isolated": True}, ValueError, "define its function in a mod"),
    ],
)
def test_bad_input_is_one_sentence(candidates, options, error, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        race(candidates, **options)
    assert "\n" not in str(raised.value)


def test_results_are_compared_with_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = {
        "wrong": lambda: X + 1,
        "failing": lambda: X @ X[1:],
        "right": lambda: X + 2,
        "too": lambda: 2 + X,
    }
    reference = Candidate(lambda: X.double().add(2).float())
    raced = race(candidates, reference=reference, budget=0.2, progress=True, key=len)
    assert raced.winner in ("right", "too")
    assert raced.order == ("too", "wrong", "right", "failing")
    assert "OTHER RESULT" in raced.dropped["wrong"].reason
    assert "RuntimeError" in raced.dropped["failing"].reason
    assert "4/4" in capsys.readouterr().err
    dropped = race(candidates, budget=0.2).dropped  # the reference is the first
    assert "wrong" not in dropped or "OTHER RESULT" not in dropped["wrong"].reason
    assert "OTHER RESULT" in dropped["right"].reason
    assert not race(candidates, check=None, budget=0.1).same_results


share = st.one_of(st.none(), st.floats(0.01, 20))


@given(flops=share, ceiling=st.floats(1e9, 1e15), moved=share, warm=st.booleans())
def test_a_time_is_too_fast_beyond_the_rates_of_the_device(flops, ceiling, moved, warm) -> None:
    options = options_of("race", RaceOptions, {})
    timer = _Timer(isolation.Plan({}, None, None, (), 1.0, options), options, ())
    measured: Any = types.SimpleNamespace(
        cache="warm" if warm else "cold",
        flops_per_second=None if flops is None else flops * ceiling,
        bytes_per_second=None if moved is None else moved * 2**40,
        ceilings=types.SimpleNamespace(flops_per_second=ceiling, bytes_per_second=2**40),
    )
    told = re.match(r"it reaches (\d+)% .* largest (\w+)", timer.too_fast(measured))
    if flops is not None and flops > 1.1:
        assert told is not None
        assert (int(told[1]), told[2]) == (pytest.approx(100 * flops, abs=0.6), "matmul")
    elif moved is not None and moved > 1.1 and not warm:  # a cache is faster than memory
        assert told is not None
        assert (int(told[1]), told[2]) == (pytest.approx(100 * moved, abs=0.6), "copy")
    else:
        assert told is None
    measured.ceilings = None
    assert timer.too_fast(measured) == ""


def test_a_race_goes_on_without_those_that_end_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[isolation.Plan] = []
    now = iter([0.0, 1.0, 2.0, 5.0, 6.0, 11.0])
    raced = run(SimulatedTimer({"a": 1e-5, "b": 1.2e-5}))

    def run_once(_run: object, plan: isolation.Plan, _tell: object) -> Race | isolation._Loss:
        plans.append(plan)
        if "bad" in plan.candidates:
            return isolation._Loss("bad", "it ended its process")
        if not plan.thorough:
            return isolation._Loss("", "it ended in a round")
        return raced

    monkeypatch.setattr(isolation, "_run_once", run_once)
    monkeypatch.setattr(isolation, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    candidates = {name: Candidate(racers.add, X) for name in ("a", "bad", "b")}
    found = race(candidates, isolated=True, budget=3)
    assert [[*plan.candidates] for plan in plans] == [["a", "bad", "b"], ["a", "b"], ["a", "b"]]
    assert [plan.order for plan in plans] == [["a", "bad", "b"], ["a", "b"], ["a", "b"]]
    assert (found.winner, found.order, found.seconds) == ("a", ("a", "bad", "b"), 11.0)
    # The first process is given up at 2 s, the last one starts at 6 s.
    own = raced.dropped["b"]
    assert found.dropped == {
        "bad": Dropped("it ended its process", "alone", 2.0),
        "b": dataclasses.replace(own, seconds=6.0 + own.seconds),
    }


def test_a_child_process_that_cannot_begin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    exec("def work(): return 1", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(RuntimeError, match=r"race could not begin: .*only_here"):
        race([module.work, module.work], isolated=True)


@pytest.mark.thorough
def test_a_child_process_survives_what_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    candidates = {
        name: Candidate(getattr(racers, name), X)
        for name in ("abort", "never_return", "fail", "add", "double")
    }
    raced = race(candidates, isolated=True, timeout=1, budget=0.2)
    assert raced.winner in ("add", "double")
    assert "its process ended by SIGABRT" in raced.dropped["abort"].reason
    assert "its process gave no answer in" in raced.dropped["never_return"].reason
    assert "ArithmeticError: no result for this input" in raced.dropped["fail"].reason
    assert raced.order == tuple(candidates)


def test_the_command_prints_and_writes_the_race(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "race.json"
    arguments = ["race", "-n", "one=torch.sin(x)", "-n", "other=x.sin()"]
    setup = ["--setup", "x = torch.randn(1 << 14)", "--check", "none"]
    assert main([*arguments, *setup, "--device", "cpu", "--json", str(file)]) == 0
    loaded = convtime.load(file)
    assert isinstance(loaded, Race)
    assert f"{loaded.winner} wins with" in capsys.readouterr().out
    assert loaded.order == ("one", "other")
    assert main(["race", "torch.ones(1)"]) == 2
    assert "at least two candidates to race" in capsys.readouterr().err


@pytest.mark.cuda
class TestOnTheGpu:
    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.randn(1 << 22, device="cuda")

    @pytest.mark.timing
    def test_it_finds_the_fastest(self, x: torch.Tensor) -> None:
        calls = {
            "three": lambda: x + 1 - 1 + 1,
            "one": lambda: x + 1,
            "alias": lambda: torch.add(x, 1),
            "nothing": lambda: None,
        }
        raced = race(calls, reference=lambda: x + 1)
        assert raced.winner == "one"
        assert "alias" in raced.ties
        assert "no work to the GPU" in raced.dropped["nothing"].reason

    def test_under_a_profiler_it_runs_and_under_capture_it_is_refused(
        self, x: torch.Tensor
    ) -> None:
        candidates = {"two": lambda: x + 1 + 1, "one": lambda: x + 2}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            assert race(candidates, check=None).winner == "one"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), pytest.raises(ValueError, match="being captured"):
            race(candidates)

    @pytest.mark.thorough
    def test_isolated_candidates_may_make_the_gpu_unusable(self, x: torch.Tensor) -> None:
        candidates = {
            name: Candidate(getattr(racers, name), x)
            for name in ("access_illegally", "spin_forever", "add", "double")
        }
        raced = race(candidates, isolated=True, timeout=5)
        assert raced.winner in ("add", "double")
        assert "device-side assert" in raced.dropped["access_illegally"].reason
        assert "timeout=5 s passed" in raced.dropped["spin_forever"].reason
        torch.cuda.synchronize()

    @pytest.mark.thorough
    @pytest.mark.parametrize("name", ["access_illegally", "spin_forever"])
    def test_here_they_end_the_race_with_a_sentence(self, name: str) -> None:
        program = f"""
import os
import torch
from convtime import Candidate, race
from tests.helpers import racers

x = torch.randn(1 << 20, device="cuda")
try:
    race([Candidate(racers.add, x), Candidate(racers.{name}, x)], timeout=3)
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)  # Python's own end would wait for the GPU
"""
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | path, **options)
        (said,) = done.stdout.strip().splitlines()
        assert f"after {name!r} ran" in said
        assert "race(..., isolated=True) drops such a candidate" in said
