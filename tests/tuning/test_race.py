"""Races: their decisions on simulated samples, and on devices."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import subprocess
import sys
import types
from collections.abc import Sequence

import pytest
import torch

import convtime
from convtime import Agreement, Candidate, Comparison, Measurement, Race, race
from convtime.cli import main
from convtime.timing.condition import Condition
from convtime.tuning import heats
from tests.helpers import racers
from tests.helpers.figures import table
from tests.helpers.measurements import changed
from tests.helpers.simulated_races import KERNEL, SimulatedTimer, run


class TestDecisions:
    @pytest.mark.parametrize("count", [2, 5, 12, 40])
    def test_the_winner_is_close_to_the_fastest_and_its_ties_to_it(self, count: int) -> None:
        for seed in range(15):
            draw = random.Random(seed)
            true = {f"c{i}": 1e-5 * (1 + draw.expovariate(12)) for i in range(count)}
            least = min(true.values())
            raced = run(SimulatedTimer(true, seed))
            assert true[raced.winner] <= 1.01 * least
            assert true[raced.fastest] <= 1.005 * least
            assert raced.winner in raced.ties
            assert raced.fastest in raced.ties
            assert {*raced.ties, *raced.dropped} == {*true}

    def test_a_repeated_race_finds_a_winner_that_was_a_tie(self) -> None:
        true = {f"c{i}": 1e-5 * (1 + 0.0025 * (i % 9)) for i in range(18)}
        races = [run(SimulatedTimer(true, seed)) for seed in range(20)]
        for one, other in itertools.permutations(races, 2):
            assert one.winner in other.ties

    def test_ties_are_won_by_the_first(self) -> None:
        true = {"slow": 2e-5, "first": 1.001e-5, "second": 1e-5, "third": 1.002e-5}
        for seed in range(10):
            raced = run(SimulatedTimer(true, seed))
            assert raced.winner == "first"
            assert raced.ties == ("first", "second", "third")

    def test_the_order_breaks_ties(self) -> None:
        timer = SimulatedTimer({"a": 1e-5, "b": 1e-5, "c": 1e-5})
        raced = run(timer, order=["c", "b", "a"])
        assert raced.winner == "c"
        assert raced.order == raced.ties == ("c", "b", "a")

    def test_a_tie_in_the_outer_half_of_the_margin_does_not_win(self) -> None:
        raced = run(SimulatedTimer({"slower": 1.0085e-5, "faster": 1e-5}))
        assert raced.winner == raced.fastest == "faster"
        assert raced.ties == ("slower", "faster")

    def test_the_clearly_slower_are_dropped_alone(self) -> None:
        timer = SimulatedTimer({"a": 1e-5, "b": 1.01e-5, "c": 2e-5})
        raced = run(timer)
        assert raced.dropped["c"].stage == "alone"
        assert re.search(
            r"alone, it took (1\.\d|2\.\d)\d times as long as [ab]$", raced.dropped["c"].reason
        )
        assert [sorted(names) for names, _, _ in timer.asked] == [["a", "b"]]

    def test_many_are_screened_before_the_last_round(self) -> None:
        near = {f"near {i}": 1e-5 * (1 + 0.003 * i) for i in range(4)}
        true = near | {f"far {i}": 1e-5 * (1.1 + 0.02 * i) for i in range(16)}
        timer = SimulatedTimer(true)
        raced = run(timer)
        assert [last for _, _, last in timer.asked] == [False, True]
        assert len(timer.asked[0][0]) > 10
        assert len(timer.asked[1][0]) <= 4
        assert raced.seconds <= 0.08 * 20 + 0.05

    def test_without_a_dropped_candidate_screening_ends(self) -> None:
        true = dict.fromkeys((f"c{i}" for i in range(12)), 1e-5)
        timer = SimulatedTimer(true)
        assert run(timer).winner == "c0"
        assert [last for _, _, last in timer.asked] == [False, True]

    def test_a_candidate_alone_at_last_needs_no_round(self) -> None:
        raced = run(SimulatedTimer({"a": 1e-5, "b": 5e-5}))
        assert raced.winner == "a"
        assert raced.ties == ("a",)
        assert raced.rounds == ()
        assert raced.judge("b") is None

    def test_a_failing_candidate_does_not_end_the_race(self) -> None:
        class Failing(SimulatedTimer):
            def alone(self, name: str) -> Measurement:
                if name == "bad":
                    raise ValueError("no such configuration\nmore lines")
                return super().alone(name)

        raced = run(Failing({"bad": 1e-6, "a": 1e-5, "b": 1.3e-5}))
        assert raced.winner == "a"
        assert raced.dropped["bad"].reason == "it failed (ValueError: no such configuration)"
        assert raced.measurement("bad") is None

    def test_a_candidate_that_fails_among_others_is_found(self) -> None:
        class FailingLater(SimulatedTimer):
            def alone(self, name: str) -> Measurement:
                if name == "bad" and self.asked:
                    raise MemoryError("out of memory")
                return super().alone(name)

            def together(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
                compared = super().together(names, seconds, last=last)
                if "bad" in names:
                    raise MemoryError("out of memory")
                return compared

        raced = run(FailingLater({"bad": 0.99e-5, "a": 1e-5, "b": 1.3e-5}))
        assert raced.winner == "a"
        assert "out of memory" in raced.dropped["bad"].reason

    def test_candidates_that_fail_only_together_end_it_with_a_sentence(self) -> None:
        class FailingTogether(SimulatedTimer):
            def together(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
                raise MemoryError("out of memory")

        with pytest.raises(RuntimeError, match="can be timed alone, but not together.*race fewer"):
            run(FailingTogether({"a": 1e-5, "b": 1e-5}))

    def test_other_results_are_dropped_before_they_can_be_the_fastest(self) -> None:
        wrong = Agreement(False, "3 of 4 numbers differ")
        timer = SimulatedTimer({"a": 1e-5, "wrong": 1e-6}, agreements={"wrong": wrong})
        raced = run(timer)
        assert raced.winner == "a"
        assert "OTHER RESULT: 3 of 4 numbers differ" in raced.dropped["wrong"].reason

    def test_calls_without_gpu_work_are_dropped(self) -> None:
        class OnHost(SimulatedTimer):
            def alone(self, name: str) -> Measurement:
                method = Condition("cpu", "auto") if name == "empty" else KERNEL
                return changed(super().alone(name), method=method)

        raced = run(OnHost({"empty": 1e-7, "a": 1e-5, "b": 1.2e-5}))
        assert raced.winner == "a"
        assert raced.dropped["empty"].reason == "it issues no work to the GPU, unlike others"

    def test_what_is_too_fast_is_timed_again(self) -> None:
        class Hasty(SimulatedTimer):
            """Its first time of `mishap`, and all of `miracle`, are too short."""

            def too_fast(self, measured: Measurement) -> str:
                first = self.timed_alone.count(measured.name) == 1
                wrong = measured.name == "miracle" or (measured.name == "mishap" and first)
                return "it reaches 900%" if wrong else ""

        timer = Hasty({"a": 1e-5, "mishap": 1e-5, "miracle": 1e-5})
        raced = run(timer)
        assert sorted(timer.timed_alone) == ["a", "miracle", "miracle", "mishap", "mishap"]
        assert raced.remarks == {"miracle": "it reaches 900%"}
        assert "note on miracle: it reaches 900%" in str(raced)

    def test_if_all_fail_the_reasons_are_told(self) -> None:
        class Failing(SimulatedTimer):
            def alone(self, name: str) -> Measurement:
                raise TypeError(f"{name} is broken")

        with pytest.raises(RuntimeError, match=r"none of .* timed: 'a': .*a is broken.*'b': "):
            run(Failing({"a": 1e-5, "b": 1e-5}))

    def test_an_unusable_gpu_ends_it(self) -> None:
        class Broken(SimulatedTimer):
            def alone(self, name: str) -> Measurement:
                raise heats.UnusableError(name, "the GPU is unusable")

        with pytest.raises(heats.UnusableError, match="unusable"):
            run(Broken({"a": 1e-5, "b": 1e-5}))


@pytest.fixture(scope="module")
def raced() -> Race:
    true = {f"c{i}": 1e-5 * (1 + 0.004 * i) for i in range(10)} | {"slow": 3e-5}
    return run(SimulatedTimer(true))


class TestResult:
    def test_it_is_saved_and_loaded(self, raced: Race, tmp_path) -> None:
        raced.save(tmp_path / "race.json")
        assert convtime.load(tmp_path / "race.json") == raced

    def test_it_prints_every_candidate_once(self, raced: Race) -> None:
        rows = [line.split()[0] for line in str(raced).splitlines()[4:15]]
        assert sorted(rows) == sorted(raced.order)
        assert rows[0] == raced.winner
        assert "slow was dropped alone, after" in str(raced)
        assert repr(raced).startswith(f"<convtime.Race {raced.winner} wins with ")
        assert "round 1" in raced.details()
        (figure,) = raced.figures()
        assert {*table(figure, "middle")["row"]} > {f"{raced.winner}: baseline"}

    def test_finalists_are_judged_against_the_winner(self, raced: Race) -> None:
        for name in raced.rounds[-1].measurements:
            judged = raced.judge(name)
            assert judged is not None
            assert judged.ratio == raced.rounds[-1].ratio(name, raced.winner)
        with pytest.raises(KeyError, match="must be one of"):
            raced.judge("unknown")

    def test_a_winner_that_did_not_run_is_rejected(self, raced: Race) -> None:
        with pytest.raises(ValueError, match="must be some of"):
            dataclasses.replace(raced, winner="unknown")


X = torch.randn(1 << 14)


class TestBadInput:
    @pytest.mark.parametrize(
        ("candidates", "options", "error", "message"),
        [
            ({}, {}, ValueError, "at least two candidates to race, got none"),
            ({"a": len}, {}, ValueError, "got 'a' alone; time_op times it"),
            ([len, 3], {}, TypeError, "must be callable, got int"),
            ("ab", {}, TypeError, "in a mapping by name or in a sequence"),
            ([len, len], {"margin": 0.02}, ValueError, "above 0 and at most 0.01, got 0.02"),
            ([len, len], {"margin": 0}, ValueError, "margin must be a number above 0"),
            ([len, len], {"budget": -1}, ValueError, "budget must be a number above 0, got -1"),
            ([len, len], {"timeout": "x"}, ValueError, "timeout must be a number above 0"),
            ([len, len], {"check": "same"}, ValueError, "check must be 'close', 'exact' or None"),
            ([len, len], {"isolated": 1}, ValueError, "isolated must be True or False"),
            ([len, len], {"stop": "count"}, TypeError, "race has no option 'stop'"),
            ([len, len], {"isolated": True, "log": print}, ValueError, "leave out stream and log"),
            ([len, len], {"reference": 3}, TypeError, "must be callable, got int"),
            ([len, len], {"cache": "tepid"}, ValueError, "cache must be one of"),
        ],
    )
    def test_it_is_one_sentence(self, candidates, options, error, message: str) -> None:
        with pytest.raises(error, match=re.escape(message)) as raised:
            race(candidates, **options)
        assert "\n" not in str(raised.value)

    def test_what_is_isolated_must_be_importable(self) -> None:
        with pytest.raises(ValueError, match=r"isolated=True sends .*define its function in a mod"):
            race([lambda: None, lambda: None], isolated=True)


class TestOnTheCpu:
    def test_it_finds_the_fastest(self) -> None:
        raced = race(
            {
                "many": lambda: [torch.sin(X) for _ in range(30)],
                "one": lambda: torch.sin(X),
                "failing": lambda: X @ X[1:],
            },
            check=None,
        )
        assert raced.winner == "one"
        assert "many" in raced.dropped  # at which stage depends on the machine's load
        assert "RuntimeError" in raced.dropped["failing"].reason

    def test_results_are_compared_with_the_reference(self) -> None:
        candidates = {"wrong": lambda: X + 1, "right": lambda: X + 2, "too": lambda: 2 + X}
        raced = race(candidates, reference=lambda: X.double().add(2).float(), budget=0.2)
        assert raced.winner in ("right", "too")
        assert "OTHER RESULT" in raced.dropped["wrong"].reason
        dropped = race(candidates, budget=0.2).dropped  # the reference is the first
        assert "wrong" not in dropped or "OTHER RESULT" not in dropped["wrong"].reason
        assert "OTHER RESULT" in dropped["right"].reason

    def test_the_key_orders_ties(self) -> None:
        same = Candidate(torch.sin, X)
        raced = race({"bbb": same, "a": same, "cc": same}, key=len, budget=0.2)
        assert raced.order == ("a", "cc", "bbb")

    def test_progress_is_shown(self, capsys) -> None:
        race({"a": lambda: X + 1, "b": lambda: X + 2}, check=None, progress=True)
        assert "2/2" in capsys.readouterr().err

    def test_a_child_process_survives_what_ends_it(self) -> None:
        candidates = {
            name: Candidate(getattr(racers, name), X)
            for name in ("abort", "never_return", "fail", "add", "double")
        }
        raced = race(candidates, isolated=True, timeout=1, budget=0.2)
        assert raced.winner in ("add", "double")
        assert "it ended its process by signal 6" in raced.dropped["abort"].reason
        assert "it had not ended after" in raced.dropped["never_return"].reason
        assert "ArithmeticError: no result for this input" in raced.dropped["fail"].reason
        assert raced.order == tuple(candidates)

    def test_a_child_process_that_cannot_begin_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = types.ModuleType("only_here")
        exec("def work(): return 1", vars(module))
        monkeypatch.setitem(sys.modules, "only_here", module)
        with pytest.raises(RuntimeError, match=r"race could not begin: .*only_here"):
            race([module.work, module.work], isolated=True)


class TestOnTheCommandLine:
    def test_it_prints_and_writes_the_race(self, tmp_path, capsys) -> None:
        file = tmp_path / "race.json"
        arguments = ["race", "-n", "one=torch.sin(x)", "-n", "many=[x.sin() for _ in range(30)]"]
        setup = ["--setup", "x = torch.randn(1 << 14)", "--check", "none"]
        assert main([*arguments, *setup, "--device", "cpu", "--json", str(file)]) == 0
        assert "one wins with" in capsys.readouterr().out
        loaded = convtime.load(file)
        assert isinstance(loaded, Race)
        assert loaded.winner == "one"

    def test_a_single_statement_is_refused(self, capsys) -> None:
        assert main(["race", "torch.ones(1)"]) == 2
        assert "at least two candidates to race" in capsys.readouterr().err


@pytest.mark.cuda
class TestOnTheGpu:
    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.randn(1 << 22, device="cuda")

    @pytest.mark.timing
    def test_it_finds_the_fastest(self, x: torch.Tensor) -> None:
        raced = race(
            {
                "three": lambda: x + 1 - 1 + 1,
                "one": lambda: x + 1,
                "alias": lambda: torch.add(x, 1),
                "nothing": lambda: None,
            },
            reference=lambda: x + 1,
        )
        assert raced.winner == "one"
        assert "alias" in raced.ties
        assert "no work to the GPU" in raced.dropped["nothing"].reason

    def test_under_a_profiler(self, x: torch.Tensor) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            raced = race({"two": lambda: x + 1 + 1, "one": lambda: x + 2}, check=None)
        assert raced.winner == "one"

    def test_under_capture_it_is_refused(self, x: torch.Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        candidates = {"a": lambda: x + 1, "b": lambda: x + 2}
        with torch.cuda.graph(graph), pytest.raises(ValueError, match="being captured"):
            race(candidates)

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
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        said = done.stdout.strip().splitlines()
        assert len(said) == 1, done.stderr
        assert f"after {name!r} ran" in said[0]
        assert "race(..., isolated=True) drops such a candidate" in said[0]
