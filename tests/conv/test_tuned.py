"""Choosing plans: the search on simulated engines, the file, and plans on a GPU."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime import Comparison, Race, Ratio
from convtime.cli import main
from convtime.cli.exit_codes import BAD_INPUT, DONE
from convtime.conv.tuned import search as searching
from convtime.conv.tuned import tune as tuning
from convtime.conv.tuned.replay import digest_of
from convtime.conv.tuned.search import PYTORCH, Limits, Search
from convtime.conv.tuned.subjects import Subject, subject_of
from convtime.core.errors import InputError
from convtime.core.load import _C
from convtime.core.provenance import cudnn_version
from convtime.tuning import loading
from convtime.tuning.plan_set import (
    Choice,
    Facts,
    Operand,
    PlanProblem,
    Plans,
    StoredPlan,
    read_plans,
)
from tests.helpers.simulated_races import SimulatedTimer
from tests.helpers.simulated_races import run as run_race

EXACT = torch.linspace(1, 2, 64, dtype=torch.double)
needs_stored_plans = pytest.mark.skipif(
    not hasattr(_C, "store_plan"), reason="convtime was built without CUDA"
)


class Clock:
    """Time that passes only where something simulated takes some."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class Run:
    """A call that takes a known time, and computes with a known relative error."""

    def __init__(self, seconds: float, error: float = 0.0, result: torch.Tensor | None = None):
        self.seconds = seconds
        self._error = error
        self._result = torch.empty(64) if result is None else result

    def __call__(self) -> torch.Tensor:
        CLOCK.now += self.seconds
        self._result.copy_(EXACT * (1 + self._error))
        return self._result


@dataclasses.dataclass
class Engine:
    """A simulated engine: its time for each value of knob 2."""

    index: int
    seconds: Mapping[int, float]
    error: float = 1e-3
    workspace_bytes: int = 0
    fails: str = ""
    places: tuple[str, ...] = ("instant",)
    excluded: str = ""
    default: int = 0
    build_seconds: float = 0.0


class Source:
    """Engines of one pass, as ``_C.EnginePass`` has them."""

    def __init__(self, engines: Sequence[Engine], other: Source | None = None) -> None:
        self.result = torch.empty(64)
        self.other = other
        self.built: list[str] = []
        self._engines = {engine.index: engine for engine in engines}

    def in_layout(self, channels_last: bool) -> Source:
        assert channels_last
        assert self.other is not None
        return self.other

    def engines(self) -> list[dict[str, Any]]:
        return [
            {
                "tag": f"ConvFwd_eng{engine.index}_k2={engine.default}",
                "places": [(place, position) for place in engine.places],
                "knob_ranges": [
                    {
                        "knob": 2,
                        "minimum": min(engine.seconds),
                        "maximum": max(engine.seconds),
                        "step": 1,
                    }
                ],
                "workspace_bytes": engine.workspace_bytes,
                "unsupported": "",
                "excluded": engine.excluded,
            }
            for position, engine in enumerate(self._engines.values())
        ]

    def build(self, tag: str) -> tuple[int, Callable[[], None]]:
        self.built.append(tag)
        choice = Choice.of_tag(tag)
        engine = self._engines[choice.engine or 0]
        CLOCK.now += engine.build_seconds
        if engine.fails:
            raise RuntimeError(engine.fails)
        seconds = engine.seconds[dict(choice.knobs)[2]]
        return engine.workspace_bytes, Run(seconds, engine.error, self.result)  # type: ignore[return-value]


@pytest.fixture
def raced() -> list[set[str]]:
    """The candidates of each simulated race."""
    return []


@pytest.fixture
def simulated(
    monkeypatch: pytest.MonkeyPatch, raced: list[set[str]]
) -> Callable[..., tuple[Choice, Facts]]:
    """A search whose races draw samples around the known times."""
    seeds = itertools.count()

    def race(runs: Mapping[str, Run], *, key: Any, budget: float, **_options: Any) -> Race:
        timer = SimulatedTimer({name: run.seconds for name, run in runs.items()}, next(seeds))
        raced.append({*runs})
        result = run_race(timer, sorted(runs, key=key), budget)
        CLOCK.now += timer.now
        return result

    def compare(runs: Mapping[str, Run], **_options: Any) -> Comparison:
        assert all(runs)  # candidates have names
        timer = SimulatedTimer({name: run.seconds for name, run in runs.items()}, next(seeds))
        CLOCK.now += 0.1
        return timer.together([*runs], 0.1, last=True)

    monkeypatch.setattr(searching, "race", race)
    monkeypatch.setattr(searching, "compare", compare)

    def search(
        engines: Sequence[Engine],
        pytorch: Run | None = None,
        other: Sequence[Engine] = (),
        follows_list: bool = True,
        only: Sequence[Choice] | None = None,
        **limits: Any,
    ) -> tuple[Choice, Facts]:
        chosen = {"budget": 5.0, "margin": 0.01, "tolerance": 1.1, "knobs": False, **limits}
        return Search(
            Source(engines, Source(other)),
            pytorch or Run(100e-6, 1e-3),
            EXACT,
            Limits(**chosen),
            follows_list=follows_list,
            options={},
            clock=CLOCK,
            threads=1,  # simulated time passes in one thread
        ).run(only)

    return search


Searching = Callable[..., tuple[Choice, Facts]]


class TestSearch:
    def test_the_fastest_engine_is_chosen_with_what_it_gains(self, simulated: Searching) -> None:
        engines = [Engine(1, {0: 100e-6}), Engine(2, {0: 80e-6}), Engine(3, {0: 90e-6})]
        choice, facts = simulated(engines)
        assert choice == Choice("cudnn", 2, ((2, 0),))
        assert facts.speedup.value == pytest.approx(1.25, rel=0.01)
        assert facts.speedup.low > 1.2
        assert facts.seconds == pytest.approx(80e-6, rel=0.02)

    def test_against_a_pytorch_that_is_far_slower_the_gain_is_measured_too(
        self, simulated: Searching
    ) -> None:
        choice, facts = simulated([Engine(2, {0: 40e-6})], Run(100e-6, 1e-3), follows_list=False)
        assert choice.engine == 2
        assert facts.speedup.value == pytest.approx(2.5, rel=0.02)

    def test_among_ties_pytorchs_choice_comes_first_and_is_pinned(
        self, simulated: Searching
    ) -> None:
        for _ in range(8):
            choice, facts = simulated([Engine(1, {0: 100e-6}), Engine(2, {0: 99.9e-6})])
            assert choice.engine == 1, "the first of the list by which PyTorch selects"
            assert PYTORCH in facts.ties
            assert facts.speedup.value == 1

    def test_pytorchs_own_kernels_are_not_pinned(self, simulated: Searching) -> None:
        choice, _facts = simulated([Engine(1, {0: 120e-6})], follows_list=False)
        assert choice == Choice("pytorch")

    def test_then_the_smallest_workspace_then_the_smallest_number(
        self, simulated: Searching
    ) -> None:
        for _ in range(8):
            choice, _facts = simulated(
                [
                    Engine(4, {0: 80e-6}, workspace_bytes=100),
                    Engine(7, {0: 80.1e-6}, workspace_bytes=10),
                    Engine(5, {0: 80.1e-6}, workspace_bytes=10),
                ],
                follows_list=False,
            )
            assert choice.engine == 5

    def test_less_exact_engines_are_listed_and_not_chosen(self, simulated: Searching) -> None:
        engines = [Engine(1, {0: 100e-6}), Engine(2, {0: 50e-6}, error=1.2e-3)]
        choice, facts = simulated(engines)
        assert choice.engine == 1
        assert facts.inexact == (("eng2_k2=0", pytest.approx(1.2e-3, rel=1e-3)),)
        assert simulated(engines, tolerance=1.3)[0].engine == 2

    def test_an_engine_that_writes_nothing_is_not_exact(
        self, simulated: Searching, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Source, "build", lambda self, tag: (0, Run(1e-6, 0.0, torch.empty(64))))
        choice, facts = simulated([Engine(2, {0: 50e-6})], follows_list=False)
        assert choice == Choice("pytorch")
        assert len(facts.inexact) == 1

    @pytest.mark.parametrize(
        ("engine", "limits", "reason"),
        [
            (Engine(2, {0: 50e-6}, fails="CUDNN_STATUS_X"), {}, "CUDNN_STATUS_X"),
            (Engine(2, {0: 50e-6}, excluded="an erratum"), {}, "an erratum"),
            (Engine(2, {0: 50e-6}, workspace_bytes=9), {"workspace": 8}, "above the limit of 8"),
        ],
    )
    def test_what_cannot_be_used_is_named(
        self, simulated: Searching, engine: Engine, limits: dict[str, Any], reason: str
    ) -> None:
        choice, facts = simulated([Engine(1, {0: 100e-6}), engine], **limits)
        assert choice.engine == 1
        ((name, why),) = facts.refused
        assert name == "eng2_k2=0"
        assert reason in why

    def test_where_pytorchs_own_is_above_the_limit_the_best_below_it_is_chosen(
        self, simulated: Searching
    ) -> None:
        engines = [Engine(1, {0: 100e-6}, workspace_bytes=9), Engine(2, {0: 120e-6})]
        choice, facts = simulated(engines, workspace=8)
        assert choice.engine == 2
        assert facts.pytorch_tag == ""
        assert facts.speedup.value == pytest.approx(100 / 120, rel=0.02)
        assert "above the limit of 8" in dict(facts.refused)[PYTORCH]

    def test_pytorchs_own_stays_where_nothing_meets_the_limit(self, simulated: Searching) -> None:
        engines = [Engine(1, {0: 100e-6}, workspace_bytes=9)]
        choice, facts = simulated(engines, workspace=8)
        assert choice == Choice("pytorch")
        assert "above the limit of 8" in dict(facts.refused)[PYTORCH]

    def test_results_that_change_are_refused_if_that_is_asked(
        self, simulated: Searching, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors = itertools.cycle([1.0e-3, 1.01e-3])

        def unstable(run: Run) -> torch.Tensor:
            CLOCK.now += run.seconds
            run._result.copy_(EXACT * (1 + (next(errors) if run.seconds < 90e-6 else 1e-3)))
            return run._result

        monkeypatch.setattr(Run, "__call__", unstable)
        engines = [Engine(1, {0: 100e-6}), Engine(2, {0: 80e-6})]
        choice, facts = simulated(engines)
        assert choice.engine == 2
        assert not facts.repeats
        choice, facts = simulated(engines, repeatable=True)
        assert choice.engine == 1
        assert facts.refused == (("eng2_k2=0", "its results are not repeatable"),)
        choice, facts = simulated(engines[:1], Run(80e-6, 1e-3), repeatable=True)
        assert choice.engine == 1
        assert facts.refused == ((PYTORCH, "its results are not repeatable"),)

    def test_settings_are_followed_to_the_fastest(self, simulated: Searching) -> None:
        times = {value: 80e-6 + 4e-6 * abs(value - 9) for value in range(12)}
        choice, facts = simulated([Engine(1, {0: 100e-6}), Engine(2, times)], knobs=True)
        assert choice == Choice("cudnn", 2, ((2, 9),))
        assert facts.speedup.value == pytest.approx(100 / 80, rel=0.01)

    def test_another_layout_is_taken_if_it_pays(self, simulated: Searching) -> None:
        engines, other = [Engine(1, {0: 100e-6})], [Engine(8, {0: 70e-6})]
        choice, _facts = simulated(engines, other=other, layouts=("channels_last",))
        assert choice == Choice("cudnn", 8, ((2, 0),), "channels_last")
        assert str(choice) == "eng8_k2=0 in channels_last"

    def test_settings_of_many_values_are_tried_near_the_default(self, simulated: Searching) -> None:
        times = collections.defaultdict(lambda: 80e-6, {0: 80e-6, 2**31 - 1: 80e-6})
        choice, _facts = simulated([Engine(2, times)], knobs=True, follows_list=False)
        assert choice.engine == 2

    @pytest.mark.parametrize("build_seconds", [0.001, 0.1])
    @pytest.mark.parametrize("knobs", [False, True])
    def test_a_search_ends_close_to_its_budget(
        self, simulated: Searching, build_seconds: float, knobs: bool
    ) -> None:
        def engine(index: int) -> Engine:
            times = dict.fromkeys(range(6), 80e-6 + 1e-6 * index)
            return Engine(index, times, places=("a",), build_seconds=build_seconds)

        engines = [
            Engine(1, {0: 100e-6}, build_seconds=build_seconds),
            *map(engine, range(2, 101)),
        ]
        choice, facts = simulated(
            engines,
            other=[*map(engine, range(20))],
            layouts=("channels_last",),
            budget=1.5,
            knobs=knobs,
        )
        assert facts.budget_seconds < 1.3 * 1.5
        assert facts.pytorch_tag == "eng1_k2=0"
        assert choice.engine == 0, "the fastest, which is one of another layout"
        unbuilt = [name for name, why in facts.refused if why == searching._NO_TIME]
        assert len(unbuilt) > 30
        assert "eng2_k2=0" not in unbuilt, "engines are built in the order in which they are listed"

    def test_one_build_is_all_that_the_budget_may_be_exceeded_by(
        self, simulated: Searching
    ) -> None:
        engines = [Engine(index, {0: 90e-6}, build_seconds=4.0) for index in range(1, 9)]
        _choice, facts = simulated(engines, budget=1.5)
        assert facts.pytorch_tag == "eng1_k2=0"
        assert facts.raced == 1
        _choice, facts = simulated(engines, follows_list=False, budget=1.5)
        assert facts.raced == 1, "the first one that runs"
        assert facts.budget_seconds < 4.0 + 1.5

    def test_pytorchs_engine_is_found_however_long_that_takes(self, simulated: Searching) -> None:
        broken = [
            Engine(index, {0: 1e-6}, fails="CUDNN_STATUS_X", build_seconds=1.0) for index in (5, 6)
        ]
        other = Engine(3, {0: 1e-6}, places=("a",))
        _choice, facts = simulated([*broken, other, Engine(7, {0: 100e-6})], budget=1.5)
        assert facts.pytorch_tag == "eng7_k2=0"
        assert dict(facts.refused)["eng3_k2=0"] == searching._NO_TIME

    def test_each_engine_is_built_once_before_other_settings_of_it(self) -> None:
        tags = ["eng5_k2=0", "eng5_k2=1", "eng7_k2=0", "eng5_k2=2", "eng7_k2=1", "eng9"]
        order = searching._each_engine_first(map(Choice.of_tag, tags))
        assert [choice.tag for choice in order] == [
            "eng5_k2=0",
            "eng7_k2=0",
            "eng9",
            "eng5_k2=1",
            "eng7_k2=1",
            "eng5_k2=2",
        ]

    def test_far_slower_engines_are_not_raced(
        self, simulated: Searching, raced: list[set[str]]
    ) -> None:
        engines = [Engine(2, {0: 190e-6}), Engine(3, {0: 210e-6}), Engine(4, {0: 2e-3})]
        choice, facts = simulated(engines, follows_list=False)
        assert choice == Choice("pytorch")
        assert raced == [{PYTORCH, "eng2_k2=0"}]
        assert facts.raced == 3
        above = Engine(1, {0: 100e-6}, workspace_bytes=9)
        choice, _facts = simulated([above, *engines[1:]], workspace=8)
        assert choice.engine == 3, "the fastest of those that may be chosen"

    @pytest.mark.parametrize(("seconds", "runs"), [(1.9e-3, 3), (2.1e-3, 2)])
    def test_a_far_slower_engine_runs_twice(
        self, simulated: Searching, monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int
    ) -> None:
        made: list[float] = []
        call = Run.__call__

        def counted(run: Run) -> torch.Tensor:
            made.append(run.seconds)
            return call(run)

        monkeypatch.setattr(Run, "__call__", counted)
        simulated([Engine(2, {0: seconds})], Run(1e-3, 1e-3), follows_list=False)
        assert made.count(seconds) == runs

    def test_an_engine_that_other_builds_delayed_is_raced(
        self, simulated: Searching, raced: list[set[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call = Run.__call__
        delays = iter([0.0, 1e-3, 1e-3])  # a race simulates its own times

        def delayed(run: Run) -> torch.Tensor:
            if run.seconds == 90e-6:
                CLOCK.now += next(delays, 0.0)
            return call(run)

        monkeypatch.setattr(Run, "__call__", delayed)
        engines = [Engine(1, {0: 100e-6}), Engine(2, {0: 90e-6})]
        choice, _facts = simulated(engines)
        assert choice.engine == 2
        assert raced == [{PYTORCH, "eng2_k2=0"}]

    def test_engines_are_built_by_several_threads(self) -> None:
        together = threading.Barrier(3, timeout=30)

        class Slow(Source):
            def build(self, tag: str) -> tuple[int, Callable[[], None]]:
                together.wait()
                return super().build(tag)

        engines = [Engine(index, {0: 1e-6}) for index in range(6)]
        limits = Limits(5.0, 0.01, 1.1)
        search = Search(
            *(Slow(engines), Run(1e-6, 1e-3), EXACT, limits),
            follows_list=False,
            options={},
            threads=3,
        )
        search.build()
        assert {choice.engine for choice in search.built} == {*range(6)}

    def test_only_given_choices_are_tried_again(self, simulated: Searching) -> None:
        engines = [Engine(1, {0: 60e-6}), Engine(2, {0: 80e-6})]
        choice, _facts = simulated(engines, only=[Choice("cudnn", 2, ((2, 0),))])
        assert choice.engine == 2
        choice, _facts = simulated(engines, only=[])
        assert choice == Choice("pytorch")


PROBLEM = PlanProblem(
    "fprop",
    "float16",
    Operand((8, 64, 28, 28), (50176, 1, 1792, 64), 32),
    Operand((32, 64, 3, 3), (576, 1, 192, 64), 32),
    Operand((8, 32, 28, 28), (25088, 1, 896, 32), 32),
    (1, 1),
    (1, 1),
    (1, 1),
    deterministic=False,
    allow_tf32=True,
)
FACTS = Facts(
    pytorch_tag="eng1_k2=0",
    pytorch_seconds=20e-6,
    seconds=16e-6,
    speedup=Ratio(1.25, 1.2, 1.3),
    error=3e-4,
    pytorch_error=3e-4,
    workspace_bytes=4096,
    repeats=True,
    raced=40,
    ties=("eng38_k2=8",),
    inexact=(("<b>eng9</b>", 1e-2),),
    refused=(("eng4", "not supported"),),
)
ENTRY = StoredPlan("conv1", PROBLEM, 90, 132, Choice("cudnn", 38, ((2, 8), (13, 1))), 3, FACTS)
PLANS = Plans((ENTRY,), 0.01, {"cudnn": cudnn_version(), "torch": "2.15.0"})


class TestFile:
    def test_plans_are_stored_and_loaded_as_results(self, tmp_path: Path) -> None:
        PLANS.save(tmp_path / "plans.json")
        assert read_plans(tmp_path / "plans.json") == PLANS
        assert convtime.load(tmp_path / "plans.json") == PLANS
        few = dataclasses.replace(FACTS, speedup=Ratio(1.2, -math.inf, math.inf))
        unbounded = dataclasses.replace(PLANS, entries=(dataclasses.replace(ENTRY, facts=few),))
        unbounded.save(tmp_path / "plans.json")
        assert read_plans(tmp_path / "plans.json") == unbounded

    def test_an_entry_names_engine_and_settings_and_no_position(self, tmp_path: Path) -> None:
        PLANS.save(tmp_path / "plans.json")
        (entry,) = json.loads((tmp_path / "plans.json").read_text())["entries"]
        assert entry["choice"] == {
            "backend": "cudnn",
            "engine": 38,
            "knobs": [[2, 8], [13, 1]],
            "layout": None,
        }

    def test_they_tell_what_was_gained(self) -> None:
        assert "1 of them faster" in str(PLANS)
        assert "1.2500 [1.2000, 1.3000]" in str(PLANS)
        assert "eng4" in PLANS.details()
        assert "&lt;b&gt;eng9" in PLANS._repr_html_()
        without = dataclasses.replace(ENTRY, facts=None, choice=Choice("pytorch"))
        assert "PyTorch" in str(dataclasses.replace(PLANS, entries=(without,)))

    def test_the_figure_has_the_speedups(self) -> None:
        (figure,) = PLANS.figures()
        assert '"ratio": [1.25]' in json.dumps(figure.spec)
        assert "1 of 1 problems" in figure.description

    def test_a_file_keeps_other_problems_and_replaces_equal_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.json"
        other = dataclasses.replace(ENTRY, problem=dataclasses.replace(PROBLEM, dtype="float32"))
        newer = dataclasses.replace(ENTRY, choice=Choice("cudnn", 5))
        PLANS.add_to(path)
        dataclasses.replace(PLANS, entries=(other,)).add_to(path)
        dataclasses.replace(PLANS, entries=(newer,)).add_to(path)
        assert set(read_plans(path).entries) == {newer, other}

    def test_writers_at_once_lose_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.json"

        def add(multiprocessors: int) -> None:
            entry = dataclasses.replace(ENTRY, multiprocessors=multiprocessors)
            dataclasses.replace(PLANS, entries=(entry,)).add_to(path)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            [*pool.map(add, range(16))]
        assert {each.multiprocessors for each in read_plans(path).entries} == {*range(16)}

    def test_plans_of_another_cudnn_are_not_joined(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.json"
        dataclasses.replace(PLANS, provenance={"cudnn": "9.0.0"}).save(path)
        with pytest.raises(InputError, match=r"chosen with cuDNN 9\.0\.0 .*--revalidate"):
            PLANS.add_to(path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "not valid JSON"),
            ('{"type": "Plans", "schema": "6.0", "entries"', "not valid JSON"),
            ("[1]", "no file of plans"),
            ('{"type": "Race", "schema": "6.0"}', "JSON of type 'Race'"),
            ('{"type": "Plans", "schema": "7.0"}', "schema '7.0' cannot be read"),
            ('{"type": "Plans", "schema": "6.0", "entries": 3}', "no file of plans"),
        ],
    )
    def test_a_file_that_is_no_plans_is_told_in_a_sentence(
        self, tmp_path: Path, content: str, message: str
    ) -> None:
        path = tmp_path / "plans.json"
        path.write_text(content)
        with pytest.raises(InputError, match=re.escape(message)) as raised:
            read_plans(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_two_entries_for_one_problem_are_refused(self, tmp_path: Path) -> None:
        dataclasses.replace(PLANS, entries=(ENTRY, ENTRY)).save(tmp_path / "plans.json")
        with pytest.raises(InputError, match="two entries for fprop of 8×64×28×28"):
            read_plans(tmp_path / "plans.json")

    def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            convtime.load_plans(tmp_path / "missing.json")

    def test_a_choice_needs_what_its_backend_needs(self) -> None:
        with pytest.raises(ValueError, match="an engine is needed"):
            Choice("cudnn")
        with pytest.raises(ValueError, match="a tag must name an engine"):
            Choice.of_tag("ConvFwd")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "result",
    [
        torch.arange(24.0).reshape(2, 12, 1, 1).to(memory_format=torch.channels_last),
        torch.arange(24.0).reshape(2, 12).t()[:, :, None, None],
        torch.arange(24.0).as_strided((1, 1, 1, 1), (7, 5, 3, 9)),
        torch.arange(24.0).as_strided((1, 12, 1, 1), (12, 1, 12, 12)),
        torch.empty(0, 3, 1, 1),
    ],
)
def test_a_digest_is_of_the_values_whatever_the_strides(
    result: torch.Tensor, dtype: torch.dtype
) -> None:
    result = torch.empty_strided(result.shape, result.stride(), dtype=dtype).copy_(result)
    plain = torch.tensor(result.tolist(), dtype=dtype).reshape(result.shape)
    assert digest_of(result) == digest_of(plain)
    if result.numel():
        assert digest_of(result) != digest_of(plain + 1)


@needs_stored_plans
class TestLoading:
    @pytest.fixture(autouse=True)
    def unload(self) -> Any:
        yield
        convtime.load_plans(None)

    def test_every_field_of_a_problem_identifies_it(self) -> None:
        loading.use(PLANS)
        assert loading.is_in_use(ENTRY)
        others: dict[str, Any] = {
            "pass_name": "wgrad",
            "dtype": "bfloat16",
            "stride": (1, 2),
            "padding": (0, 1),
            "dilation": (1, 3),
            "deterministic": True,
            "allow_tf32": False,
            "activation": "relu",
            **{
                name: dataclasses.replace(getattr(PROBLEM, name), alignment=16)
                for name in ("x", "w", "y")
            },
            "b": Operand((1, 32, 1, 1), (32, 1, 32, 32), 32),
        }
        for name, value in others.items():
            other = dataclasses.replace(PROBLEM, **{name: value})
            assert not loading.is_in_use(dataclasses.replace(ENTRY, problem=other)), name
        assert not loading.is_in_use(dataclasses.replace(ENTRY, architecture=80))
        assert not loading.is_in_use(dataclasses.replace(ENTRY, multiprocessors=114))

    def test_loading_replaces_what_was_loaded(self) -> None:
        loading.use(PLANS)
        other = dataclasses.replace(ENTRY, architecture=80)
        loading.use(dataclasses.replace(PLANS, entries=(other,)))
        assert not loading.is_in_use(ENTRY)
        assert loading.is_in_use(other)
        assert convtime.load_plans(None) is None
        assert not loading.is_in_use(other)

    def test_plans_of_another_cudnn_have_to_be_checked_first(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.json"
        dataclasses.replace(PLANS, provenance={"cudnn": "9.0.0"}).save(path)
        with pytest.raises(InputError, match=r"chosen with cuDNN 9\.0\.0, and this is"):
            loading.use(read_plans(path))

    def test_plans_of_another_gpu_are_refused(self) -> None:
        other = dataclasses.replace(ENTRY, architecture=12345)
        with pytest.raises(InputError, match="the plans are for sm_12345 with 132 multi"):
            convtime.load_plans(dataclasses.replace(PLANS, entries=(other,)))

    def test_a_value_that_no_problem_has_is_refused(self) -> None:
        values: dict[str, Any] = {"dtype": "int8", "pass_name": "x", "stride": (1,)}
        for name, value in values.items():
            broken = dataclasses.replace(PROBLEM, **{name: value})
            with pytest.raises(ValueError, match=name):
                loading.use(
                    dataclasses.replace(
                        PLANS, entries=(dataclasses.replace(ENTRY, problem=broken),)
                    )
                )

    def test_the_environment_names_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "plans.json"
        PLANS.save(path)
        program = (
            "from convtime.tuning import loading, plan_set; import sys;"
            "print(loading.is_in_use(plan_set.read_plans(sys.argv[1]).entries[0]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, path],
            env={**os.environ, "CONVTIME_PLANS": str(path)},
            capture_output=True,
            text=True,
        )
        assert done.stdout == "True\n", done.stderr


def test_a_problem_is_asked_for_by_the_call_that_it_describes() -> None:
    subject = subject_of(PROBLEM)
    assert subject.call.problem.in_channels == 64
    assert subject.call.problem.groups == 1
    tensors = subject.call.tensors("cpu", backward=False)
    assert tensors.x.is_contiguous(memory_format=torch.channels_last)
    grouped = dataclasses.replace(PROBLEM, w=Operand((32, 16, 3, 3), (144, 1, 48, 16), 8))
    subject = subject_of(grouped)
    assert subject.call.problem.groups == 4
    assert subject.call.tensors("cpu", backward=False).w.data_ptr() % 32 == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be a number above 0"),
        ({"margin": 0.02}, "margin must be a number above 0 and at most 0.01, got 0.02"),
        ({"tolerance": -1}, "tolerance must be a number above 0"),
        ({"workspace_limit": 0.5}, "workspace_limit must be bytes, 0 or more, got 0.5"),
        ({"layouts": ("nhwc",)}, "layouts must be some of"),
        ({"layouts": "channels_last"}, "layouts must be some of"),
        ({"passes": ("forward",)}, "passes must be some of"),
        ({"passes": ()}, "passes must be some of"),
    ],
)
def test_arguments_out_of_range_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        convtime.tune(F.conv2d, torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="plans are chosen on a GPU"):
        convtime.tune(F.conv2d, torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1))
    assert main(["tune", "n1c8h8k8f3p1"]) == BAD_INPUT
    assert "needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("an illegal memory access\nand more"), "an illegal memory access;"),
        (KeyboardInterrupt(), "it was interrupted;"),
    ],
)
def test_plans_outlive_a_confirmation_that_fails(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, why: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(tuning, "_gpu", torch.device)
    monkeypatch.setattr(tuning, "_tuned", lambda *_: [ENTRY])
    monkeypatch.setattr(tuning, "subjects_of_call", lambda *_: [])
    monkeypatch.setattr(tuning, "confirmed", fail)
    with pytest.warns(UserWarning, match=f"in a fresh process is unknown: .*{why}"):
        plans = convtime.tune(F.conv2d, device="cpu")
    assert plans.entries == (ENTRY,)


@pytest.mark.parametrize("workers", [None, 1])
def test_a_search_that_fails_costs_no_other_plan(
    monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    problems = [dataclasses.replace(PROBLEM, padding=(padding, 1)) for padding in range(4)]
    subjects = [subject_of(each, f"conv{place}") for place, each in enumerate(problems)]

    def search(subject: Subject, *_: Any) -> StoredPlan:
        if subject.name in ("conv0", "conv2"):
            raise RuntimeError("out of memory")
        return dataclasses.replace(
            ENTRY, name=subject.name, problem=problems[int(subject.name[-1])]
        )

    monkeypatch.setattr(tuning, "tune_pass", search)
    monkeypatch.setattr(tuning, "_gpu", torch.device)
    limits = Limits(1.0, 0.01, 1.1)
    with contextlib.ExitStack() as stack:
        threads = workers and concurrent.futures.ThreadPoolExecutor(workers)
        executor = stack.enter_context(threads) if threads else None
        options = {"device": "cpu"}
        with pytest.warns(UserWarning, match="found for conv0 fprop and 1 more: .*out of memory"):
            entries = tuning._tuned(subjects, limits, executor, None, options)
        assert [entry.name for entry in entries] == ["conv1", "conv3"]
        with pytest.raises(RuntimeError, match="found for conv0 fprop: .*out of memory"):
            tuning._tuned(subjects[:1], limits, executor, None, options)


def test_policy_and_plans_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="plans are used by layers without a policy"):
        convtime.nn.replace(torch.nn.Conv2d(1, 1, 1), policy="benchmark", plans=PLANS)


LINE = "conv2d:n8c64h28w28k64r3s3p1"


@pytest.mark.cuda
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def unload(self) -> Any:
        yield
        convtime.load_plans(None)
        convtime.clear_plan_cache()

    @staticmethod
    def operands(dtype: torch.dtype = torch.float16, groups: int = 1) -> list[torch.Tensor]:
        x = torch.randn(8, 64, 28, 28, device="cuda", dtype=dtype)
        w = torch.randn(64, 64 // groups, 3, 3, device="cuda", dtype=dtype) / 24
        return [x.to(memory_format=torch.channels_last).requires_grad_(), w.requires_grad_()]

    def test_chosen_plans_run_in_all_passes_and_give_the_same_results(self, tmp_path: Path) -> None:
        x, w = self.operands()
        plans = convtime.tune(F.conv2d, x, w, kwargs={"padding": 1}, budget=0.5)
        assert [entry.problem.pass_name for entry in plans.entries] == ["fprop", "dgrad", "wgrad"]
        for entry in plans.entries:
            assert entry.facts is not None
            assert entry.facts.speedup.high > 0.99
            assert entry.facts.seconds <= 1.02 * entry.facts.pytorch_seconds
        plans.save(tmp_path / "plans.json")
        convtime.load_plans(tmp_path / "plans.json")
        convtime.clear_plan_cache()
        grad = torch.randn(8, 64, 28, 28, device="cuda", dtype=torch.float16)
        expected = torch.autograd.grad(F.conv2d(x, w, padding=1), (x, w), grad)
        got = torch.autograd.grad(convtime.ops.conv2d(x, w, padding=1), (x, w), grad)
        for theirs, ours in zip(expected, got, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
        ran = {choice.pass_name: choice for choice in convtime.plan_cache()}
        for entry in plans.entries:
            if entry.choice.backend == "cudnn":
                choice = ran[entry.problem.pass_name]
                assert choice.source == "explicit"
                assert Choice.of_tag(choice.tag).engine == entry.choice.engine

    def test_a_named_engine_is_used_and_another_problem_is_not_touched(self) -> None:
        x, w = self.operands()
        table = convtime.engines(F.conv2d, x.detach(), w.detach(), kwargs={"padding": 1})
        other = next(
            each for each in table.passes[0].timed if each.tag != table.passes[0].pytorch_tag
        )
        plans = convtime.tune(F.conv2d, x.detach(), w.detach(), kwargs={"padding": 1}, budget=0.2)
        (entry,) = plans.entries
        pinned = dataclasses.replace(entry, choice=Choice.of_tag(other.tag))
        convtime.load_plans(dataclasses.replace(plans, entries=(pinned,)))
        convtime.clear_plan_cache()
        convtime.ops.conv2d(x, w, padding=1)
        convtime.ops.conv2d(x[:4], w, padding=1)
        first, second = convtime.plan_cache()
        assert Choice.of_tag(first.tag) == pinned.choice
        assert second.source == "instant"

    def test_a_plan_that_cannot_be_used_is_named_once_and_pytorchs_takes_its_place(self) -> None:
        x, w = self.operands()
        plans = convtime.tune(
            F.conv2d, x.detach(), w.detach(), kwargs={"padding": 1}, budget=0.2, confirm=False
        )
        broken = dataclasses.replace(plans.entries[0], choice=Choice("cudnn", 9999))
        convtime.load_plans(dataclasses.replace(plans, entries=(broken,)))
        expected = F.conv2d(x, w, padding=1)
        with pytest.warns(UserWarning, match=r"stored plan for .*eng9999.* cannot be used"):
            got = convtime.ops.conv2d(x, w, padding=1)
        assert torch.equal(got, expected)
        assert not loading.is_in_use(broken)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(convtime.ops.conv2d(x, w, padding=1), expected)

    def test_another_layout_computes_the_same(self) -> None:
        x = torch.randn(8, 64, 28, 28, device="cuda").requires_grad_()
        w = (torch.randn(64, 64, 3, 3, device="cuda") / 24).requires_grad_()
        plans = convtime.tune(F.conv2d, x, w, kwargs={"padding": 1}, budget=0.3, knobs=False)
        last = [
            x.detach().to(memory_format=torch.channels_last).requires_grad_(),
            w.detach().to(memory_format=torch.channels_last).requires_grad_(),
        ]
        table = convtime.engines(F.conv2d, *last, kwargs={"padding": 1})
        entries = tuple(
            dataclasses.replace(entry, choice=Choice.of_tag(found.timed[0].tag, "channels_last"))
            for entry, found in zip(plans.entries, table.passes, strict=True)
        )
        expected = F.conv2d(x, w, padding=1)
        grad = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, (x, w), grad)
        convtime.load_plans(dataclasses.replace(plans, entries=entries))
        ours = convtime.ops.conv2d(x, w, padding=1)
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-2)
        for theirs, got in zip(wanted, torch.autograd.grad(ours, (x, w), grad), strict=True):
            assert got.stride() == theirs.stride()
            assert (got - theirs).norm() < 1e-2 * theirs.norm()  # in TF32
        assert all(map(loading.is_in_use, entries))

    def test_depthwise_convolutions_may_run_cudnn_in_place_of_pytorchs_kernel(self) -> None:
        x = torch.randn(8, 64, 28, 28, device="cuda", requires_grad=True)
        w = torch.randn(64, 1, 3, 3, device="cuda", requires_grad=True)
        call: dict[str, Any] = {"padding": 1, "groups": 64}
        plans = convtime.tune(F.conv2d, x, w, kwargs=call, budget=0.5)
        convtime.load_plans(plans)
        grad = torch.randn(8, 64, 28, 28, device="cuda")
        expected = torch.autograd.grad(F.conv2d(x, w, **call), (x, w), grad)
        got = torch.autograd.grad(convtime.ops.conv2d(x, w, **call), (x, w), grad)
        for theirs, ours in zip(expected, got, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)

    def test_what_a_program_has_run_can_be_tuned(self) -> None:
        convtime.clear_plan_cache()
        x, w = self.operands()
        convtime.ops.conv2d(x, w, padding=1).sum().backward()
        plans = convtime.tune(convtime.plan_cache(), budget=0.2, confirm=False)
        assert {entry.problem.pass_name for entry in plans.entries} == {"fprop", "dgrad", "wgrad"}
        convtime.load_plans(plans)
        convtime.clear_plan_cache()
        convtime.ops.conv2d(x, w, padding=1)
        (choice,) = convtime.plan_cache()
        assert choice.source == "explicit"

    def test_a_model_runs_its_plans(self, tmp_path: Path) -> None:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 1)
        ).to("cuda", torch.float16)
        model = model.to(memory_format=torch.channels_last)
        x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.float16)
        expected = model(x)
        plans = convtime.tune(model, x, passes=("fprop",), budget=0.2)
        assert len(plans.entries) == 2
        plans.save(tmp_path / "plans.json")
        with convtime.nn.replace(model, plans=tmp_path / "plans.json"):
            torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
        assert all(map(loading.is_in_use, plans.entries))

    def test_the_command_writes_checks_and_uses_plans(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(tmp_path / "plans.json")
        assert main(["tune", LINE, "--dtype", "float16", "--budget", "0.2", "--save", path]) == DONE
        assert "plans for 1 problem" in capsys.readouterr().out
        assert main(["tune", "--revalidate", path]) == DONE
        capsys.readouterr()
        assert main(["conv", LINE, "--dtype", "float16", "--plans", path]) == DONE
        assert "plans of" in capsys.readouterr().out
