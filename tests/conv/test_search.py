"""The search for a plan, on simulated engines of known times and errors."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime import Comparison, Race
from convtime.conv.plans import search as searching
from convtime.conv.plans.plan_set import Choice, SearchFacts
from convtime.conv.plans.search import PYTORCH, Limits, Search
from tests.helpers.simulated_races import SimulatedTimer
from tests.helpers.simulated_races import run as run_race

EXACT = torch.linspace(1, 2, 64, dtype=torch.double)


# Time that passes only where something simulated takes some.
CLOCK = types.SimpleNamespace(now=0.0)


class Run:
    """A call that takes known times, the last one from then on, with known relative errors."""

    def __init__(
        self, *seconds: float, errors: Sequence[float] = (1e-3,), result: torch.Tensor | None = None
    ) -> None:
        self.seconds = seconds[-1]
        self.calls = 0
        self._seconds, self._errors = seconds, errors
        self._result = torch.empty(64) if result is None else result

    def __call__(self) -> torch.Tensor:
        CLOCK.now += self._seconds[min(self.calls, len(self._seconds) - 1)]
        self._result.copy_(EXACT * (1 + self._errors[self.calls % len(self._errors)]))
        self.calls += 1
        return self._result


@dataclasses.dataclass
class Engine:
    """A simulated engine: its time for each value of knob 2, or its times one after another."""

    index: int
    seconds: Mapping[int, float] | float
    errors: Sequence[float] = (1e-3,)
    workspace_bytes: int = 0
    fails: str = ""
    places: tuple[str, ...] = ("instant",)
    excluded: str = ""
    build_seconds: float = 0.0
    late: tuple[float, ...] = ()
    writes: bool = True

    @property
    def times(self) -> Mapping[int, float]:
        return {0: self.seconds} if isinstance(self.seconds, float) else self.seconds


class Source:
    """Engines of one pass, as ``_C.EnginePass`` has them."""

    def __init__(self, engines: Sequence[Engine], other: Source | None = None) -> None:
        self.result = torch.empty(64)
        self.other = other
        self.runs: dict[int, Run] = {}
        self._engines = {engine.index: engine for engine in engines}

    def in_layout(self, channels_last: bool) -> Source:
        assert channels_last
        assert self.other is not None
        return self.other

    def engines(self) -> list[dict[str, Any]]:
        return [
            {
                "tag": f"ConvFwd_eng{engine.index}_k2=0",
                "places": [(place, position) for place in engine.places],
                "knob_ranges": [{"knob": 2, "minimum": 0, "maximum": max(engine.times), "step": 1}],
                "workspace_bytes": engine.workspace_bytes,
                "unsupported": "",
                "excluded": engine.excluded,
            }
            for position, engine in enumerate(self._engines.values())
        ]

    def build(self, tag: str) -> tuple[int, Callable[[], None]]:
        choice = Choice.of_tag(tag)
        engine = self._engines[choice.engine or 0]
        CLOCK.now += engine.build_seconds
        if engine.fails:
            raise RuntimeError(engine.fails)
        seconds = engine.times[dict(choice.knobs)[2]]
        result = self.result if engine.writes else torch.empty(64)
        run = Run(*engine.late, seconds, errors=engine.errors, result=result)
        self.runs[engine.index] = run
        return engine.workspace_bytes, run  # type: ignore[return-value]


@dataclasses.dataclass
class Found:
    """What a search found, the candidates of its races, and the runs of its engines."""

    choice: Choice
    facts: SearchFacts
    raced: list[set[str]]
    runs: dict[int, Run]

    @property
    def engine(self) -> int | None:
        return self.choice.engine


def searched(
    *engines: Engine,
    pytorch: Run | None = None,
    other: Sequence[Engine] = (),
    follows_list: bool = False,
    only: Sequence[Choice] | None = None,
    seed: int = 0,
    **limits: Any,
) -> Found:
    """Search with races that draw samples around the known times."""
    seeds = itertools.count(1000 * seed)
    raced: list[set[str]] = []

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
        return timer.compare([*runs], 0.1, last=True)

    source: Any = Source(engines, Source(other))
    chosen: dict[str, Any] = {"budget": 5.0, "margin": 0.01, "tolerance": 1.1, "knobs": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "race", race)
        patch.setattr(searching, "compare", compare)
        search = Search(
            source,
            pytorch or Run(100e-6),
            EXACT,
            Limits(**chosen | limits),
            follows_list=follows_list,
            options={},
            clock=lambda: CLOCK.now,
            threads=1,  # simulated time passes in one thread
        )
        choice, facts = search.run(only)
    return Found(choice, facts, raced, source.runs)


LIMIT, TOLERANCE = 8, 1.2
DRAWN = st.builds(
    lambda micro, error, workspace, fails: Engine(
        *(0, micro * 1e-6, (error * 1e-3,), workspace), fails="it fails" if fails else ""
    ),
    st.sampled_from([50, 56, 63, 71, 80, 90, 112, 125]),
    st.sampled_from([0.5, 1.0, 1.19, 1.21, 2.0]),
    st.sampled_from([0, 4, LIMIT, LIMIT + 1]),
    st.integers(0, 5).map(lambda number: number == 0),
)


@settings(max_examples=40)
@given(st.lists(DRAWN, max_size=6), st.booleans(), st.integers(0, 9))
def test_the_fastest_that_meets_all_limits_is_chosen(
    drawn: list[Engine], limited: bool, seed: int
) -> None:
    """Times differ by a tenth or are equal; PyTorch's own kernel takes 100 µs."""
    engines = [dataclasses.replace(each, index=place + 1) for place, each in enumerate(drawn)]
    limit = LIMIT if limited else None
    found = searched(*engines, seed=seed, tolerance=TOLERANCE, workspace=limit)
    refused = {
        each.index for each in engines if each.fails or (limited and each.workspace_bytes > LIMIT)
    }
    inexact = {each.index for each in engines if each.errors[0] > TOLERANCE * 1e-3} - refused
    assert {name for name, _ in found.facts.refused} == {f"eng{each}_k2=0" for each in refused}
    assert [name for name, _ in found.facts.inexact] == [
        f"eng{each}_k2=0" for each in sorted(inexact)
    ]
    usable = [each for each in engines if each.index not in refused | inexact]
    assert found.facts.raced == len(usable)
    best = min(
        usable, key=lambda each: (each.seconds, each.workspace_bytes, each.index), default=None
    )
    if best is None or best.times[0] > 100e-6:
        assert found.choice == Choice("pytorch")
        assert found.facts.speedup.value == 1
        assert found.facts.seconds == pytest.approx(100e-6, rel=0.04)
    else:
        assert found.choice == Choice("cudnn", best.index, ((2, 0),))
        assert found.facts.speedup.value == pytest.approx(100e-6 / best.times[0], rel=0.01)
        assert found.facts.seconds == pytest.approx(best.times[0], rel=0.02)
        assert found.facts.error == pytest.approx(best.errors[0], rel=1e-3)
        assert found.facts.workspace_bytes == best.workspace_bytes
    assert found.facts.pytorch_error == pytest.approx(1e-3, rel=1e-3)
    assert found.facts.pytorch_seconds == pytest.approx(100e-6, rel=0.04)


def test_among_ties_pytorchs_comes_first_then_the_smallest_workspace_and_number() -> None:
    for seed in range(8):
        found = searched(Engine(1, 100e-6), Engine(2, 99.9e-6), follows_list=True, seed=seed)
        assert found.engine == 1, "the first of the list by which PyTorch selects is pinned"
        assert PYTORCH in found.facts.ties
        assert found.facts.speedup.value == 1
        engines = (
            Engine(4, 80e-6, workspace_bytes=100),
            Engine(7, 80.1e-6, workspace_bytes=10),
            Engine(5, 80.1e-6, workspace_bytes=10),
        )
        assert searched(*engines, seed=seed).engine == 5


def test_what_cannot_be_used_is_named() -> None:
    reasons = (
        (Engine(2, 50e-6, fails="CUDNN_STATUS_X\nmore"), "CUDNN_STATUS_X"),
        (Engine(2, 50e-6, excluded="an erratum"), "an erratum"),
        (Engine(2, 50e-6, workspace_bytes=9), "above the limit of 8"),
    )
    for engine, reason in reasons:
        found = searched(Engine(1, 100e-6), engine, follows_list=True, workspace=8)
        assert found.engine == 1
        ((name, why),) = found.facts.refused
        assert name == "eng2_k2=0"
        assert reason in why
    found = searched(Engine(2, 50e-6, writes=False))
    assert found.choice == Choice("pytorch")
    assert len(found.facts.inexact) == 1


def test_where_pytorchs_own_is_above_the_limit_the_best_below_it_is_chosen() -> None:
    above = Engine(1, 100e-6, workspace_bytes=9)
    limits: dict[str, Any] = {"follows_list": True, "workspace": 8}
    found = searched(above, Engine(2, 120e-6), **limits)
    assert found.engine == 2
    assert found.facts.pytorch_tag == ""
    assert found.facts.speedup.value == pytest.approx(100 / 120, rel=0.02)
    assert "above the limit of 8" in dict(found.facts.refused)[PYTORCH]
    found = searched(above, **limits)
    assert found.choice == Choice("pytorch")
    assert "above the limit of 8" in dict(found.facts.refused)[PYTORCH]
    # What may not be chosen is no reason to leave others out as far slower.
    assert searched(above, Engine(3, 210e-6), Engine(4, 2e-3), **limits).engine == 3


def test_results_that_change_are_refused_if_that_is_asked() -> None:
    changing = (1.0e-3, 1.01e-3)
    engines = Engine(1, 100e-6), Engine(2, 80e-6, errors=changing)
    found = searched(*engines, follows_list=True)
    assert (found.engine, found.facts.repeats) == (2, False)
    found = searched(*engines, follows_list=True, repeatable=True)
    assert (found.engine, found.facts.repeats) == (1, True)
    assert found.facts.refused == (("eng2_k2=0", "its results are not repeatable"),)
    pytorch = Run(80e-6, errors=changing)
    found = searched(engines[0], pytorch=pytorch, follows_list=True, repeatable=True)
    assert found.engine == 1
    assert found.facts.refused == ((PYTORCH, "its results are not repeatable"),)


def test_settings_are_followed_to_the_fastest() -> None:
    times = {value: 80e-6 + 4e-6 * abs(value - 9) for value in range(12)}
    found = searched(Engine(1, 100e-6), Engine(2, times), knobs=True, follows_list=True)
    assert found.choice == Choice("cudnn", 2, ((2, 9),))
    assert found.facts.speedup.value == pytest.approx(100 / 80, rel=0.01)
    many = collections.defaultdict(lambda: 80e-6, {0: 80e-6, 2**31 - 1: 80e-6})
    assert searched(Engine(2, many), knobs=True).engine == 2


@pytest.mark.parametrize("build_seconds", [0.001, 0.1])
@pytest.mark.parametrize("knobs", [False, True])
def test_a_search_ends_close_to_its_budget(build_seconds: float, knobs: bool) -> None:
    def engine(index: int) -> Engine:
        times = dict.fromkeys(range(6), 80e-6 + 1e-6 * index)
        return Engine(index, times, places=("a",), build_seconds=build_seconds)

    found = searched(
        Engine(1, 100e-6, build_seconds=build_seconds),
        *map(engine, range(2, 101)),
        other=[*map(engine, range(20))],
        layouts=("channels_last",),
        budget=1.5,
        knobs=knobs,
        follows_list=True,
    )
    assert found.facts.budget_seconds < 1.3 * 1.5
    assert found.facts.pytorch_tag == "eng1_k2=0"
    assert found.engine == 0, "the fastest, which is one of another layout"
    unbuilt = [name for name, why in found.facts.refused if why == searching._NO_TIME]
    assert len(unbuilt) > 30
    assert "eng2_k2=0" not in unbuilt, "engines are built in the order in which they are listed"


def test_what_is_built_whatever_the_budget_is() -> None:
    slow = [Engine(index, 90e-6, build_seconds=4.0) for index in range(1, 9)]
    found = searched(*slow, budget=1.5, follows_list=True)
    assert (found.facts.pytorch_tag, found.facts.raced) == ("eng1_k2=0", 1)
    found = searched(*slow, budget=1.5)
    assert found.facts.raced == 1, "the first one that runs"
    assert found.facts.budget_seconds < 4.0 + 1.5
    # PyTorch's engine is found however long that takes.
    broken = [Engine(index, 1e-6, fails="X", build_seconds=1.0) for index in (5, 6)]
    other = Engine(3, 1e-6, places=("a",))
    found = searched(*broken, other, Engine(7, 100e-6), budget=1.5, follows_list=True)
    assert found.facts.pytorch_tag == "eng7_k2=0"
    assert dict(found.facts.refused)["eng3_k2=0"] == searching._NO_TIME


def test_each_engine_is_built_once_before_other_settings_of_it() -> None:
    tags = ["eng5_k2=0", "eng5_k2=1", "eng7_k2=0", "eng5_k2=2", "eng7_k2=1", "eng9"]
    order = [choice.tag for choice in searching._each_engine_first(map(Choice.of_tag, tags))]
    assert order == ["eng5_k2=0", "eng7_k2=0", "eng9", "eng5_k2=1", "eng7_k2=1", "eng5_k2=2"]


def test_far_slower_engines_are_not_raced_and_run_twice_only() -> None:
    found = searched(Engine(2, 190e-6), Engine(3, 210e-6), Engine(4, 2e-3))
    assert found.choice == Choice("pytorch")
    assert found.raced == [{PYTORCH, "eng2_k2=0"}]
    assert found.facts.raced == 3
    for seconds, calls in ((1.9e-3, 3), (2.1e-3, 2)):
        assert searched(Engine(2, seconds), pytorch=Run(1e-3)).runs[2].calls == calls
    # Builds of others delay runs: short ones are made again, and a single slow one does not matter.
    for late, chosen in (((9e-4, 9e-4), 2), ((1.1e-3, 1.1e-3), 1), ((5e-3,), 2)):
        engine = Engine(2, 90e-6, late=late)
        assert searched(Engine(1, 100e-6), engine, follows_list=True).engine == chosen


def test_engines_are_built_by_several_threads() -> None:
    together = threading.Barrier(3, timeout=30)

    class Slow(Source):
        def build(self, tag: str) -> tuple[int, Callable[[], None]]:
            together.wait()
            return super().build(tag)

    source: Any = Slow([Engine(index, 1e-6) for index in range(6)])
    search = Search(
        *(source, Run(1e-6), EXACT),
        Limits(5.0, 0.01, 1.1),
        follows_list=False,
        options={},
        threads=3,
    )
    search.build()
    assert {choice.engine for choice in search.built} == {*range(6)}


def test_another_layout_is_taken_if_it_pays_and_only_given_choices_are_tried_again() -> None:
    limits: dict[str, Any] = {"follows_list": True, "layouts": ("channels_last",)}
    found = searched(Engine(1, 100e-6), other=[Engine(8, 70e-6)], **limits)
    assert found.choice == Choice("cudnn", 8, ((2, 0),), "channels_last")
    engines = Engine(1, 60e-6), Engine(2, 80e-6)
    assert searched(*engines, only=[Choice("cudnn", 2, ((2, 0),))]).engine == 2
    assert searched(*engines, only=[]).choice == Choice("pytorch")
