"""Find the best way to compute one pass of a convolution: the candidates, and races among them.

All choosing is done by :func:`convtime.race`. No device is used here: an engine source builds the
candidates.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import monotonic
from typing import Any

import torch

from convtime.conv.call import same_bits
from convtime.conv.engine_pass import error_of
from convtime.conv.plans.plan_set import Choice, Layout, SearchFacts
from convtime.core.errors import first_line
from convtime.core.load import _C
from convtime.timing.compare import compare
from convtime.timing.verdict import Ratio
from convtime.tuning.race import race
from convtime.tuning.race_result import Race

#: Name of PyTorch's own way among the candidates.
PYTORCH = "PyTorch"
_NOT_REPEATABLE = "its results are not repeatable"
_NO_TIME = "the budget did not suffice to build it"
_RUNS = 3  # whose bits are compared
_FAR_SLOWER = 2.0  # times the shortest single run: such a candidate is not raced
# Engines that take less are run again before they are left out: builds in other threads may have
# delayed their runs.
_DELAYED_SECONDS = 1e-3
# Some engines compile for a second, most take a tenth of a millisecond; more threads gain nothing.
_MOST_THREADS = 4
_SEARCHED = 2  # engines whose settings are varied
_MOST_VALUES = 6  # of a setting that are tried at once
# Parts of the budget after which listed engines are no longer built, and settings no longer varied.
# The time for racing what was built, at least _ALONE_SECONDS for each candidate, counts too.
_BUILT_AT = 0.65
_OWN_BUILT_AT = 0.5  # if other layouts are tried too
_VARIED_AT = 0.85
_ALONE_SECONDS = 0.01
_RACE_SHARE = 0.5  # of the time left, for a race that is not the last one
_PAIR_SECONDS = 0.1
_LEAST_SECONDS = 0.05
_CONVERTED = 8  # engines of another layout that are tried
_ERROR_OF_DOUBLE = 1e-14


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a search.

    Attributes:
        budget: Planned duration in seconds.
        margin: Relative difference of times that counts as equal.
        tolerance: Largest error of a candidate, relative to that of PyTorch's result.
        workspace: Largest workspace in bytes; None for no limit.
        repeatable: Whether candidates must give the same bits in each run.
        knobs: Whether the settings of the fastest engines are varied.
        layouts: Other layouts that are tried, with the cost of converting.
    """

    budget: float
    margin: float
    tolerance: float
    workspace: int | None = None
    repeatable: bool = False
    knobs: bool = True
    layouts: tuple[Layout, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Built:
    run: Callable[[], None]
    seconds: float  # of the shortest run, as the host sees it
    workspace_bytes: int
    error: float | None
    repeats: bool


class Search:
    """The search for one pass.

    Attributes:
        pytorch_choice: PyTorch's own engine; None before the search, or if it is not known.

    Args:
        source: builds the engines.
        theirs: PyTorch's call, which returns its result.
        exact: the result in float64; None if it is not known, and errors are not compared.
        limits: see there.
        follows_list: whether PyTorch takes the first engine of the list "instant" that runs.
        options: options of the timings.
        clock: time in seconds.
        threads: number of threads that build engines. Default: a few, besides this one.
    """

    def __init__(
        self,
        source: _C.EnginePass,
        theirs: Callable[[], torch.Tensor],
        exact: torch.Tensor | None,
        limits: Limits,
        *,
        follows_list: bool,
        options: Mapping[str, Any],
        clock: Callable[[], float] = monotonic,
        threads: int | None = None,
    ) -> None:
        self._sources: dict[Layout | None, _C.EnginePass] = {None: source}
        self._theirs = theirs
        self._exact = exact
        self._limits = limits
        self._follows_list = follows_list
        self._options = options
        self._clock = clock
        self._threads = threads or max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) - 1))
        self._pytorch_error = error_of(theirs(), exact)
        # In double precision, the exact result is PyTorch's own.
        floor = _ERROR_OF_DOUBLE if source.result.dtype == torch.double else 0.0
        self._allowed_error = max(self._pytorch_error or 0.0, floor) * limits.tolerance
        self._start = clock()  # with cudnn.benchmark on, PyTorch's first call was a search too
        self._pytorch_seconds = min(self._timed(theirs) for _ in range(_RUNS))
        self.pytorch_choice: Choice | None = None
        self._built: dict[Choice, _Built] = {}
        self._ranges: dict[tuple[int, Layout | None], list[dict[str, int]]] = {}
        self._inexact: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._unbuilt: list[Choice] = []  # for lack of time
        self._above_limit: set[Choice] = set()  # of the workspace
        if limits.repeatable and not self._repeats():
            self._refused[PYTORCH] = _NOT_REPEATABLE

    def run(self, only: Sequence[Choice] | None = None) -> tuple[Choice, SearchFacts]:
        """Search, and return the choice and what was found.

        Args:
            only: the candidates besides PyTorch's. Default: all that are listed.

        Raises:
            RuntimeError: PyTorch's call fails, or the GPU became unusable.
        """
        self.build(only)
        own = () if PYTORCH in self._refused and self._built else (None,)
        share = _RACE_SHARE if self._limits.knobs else 1.0
        raced = self._race([*own, *self._promising(self._built)], share * self._left())
        if self._limits.knobs:
            ties = filter(None, map(_choice_of, raced.ties))
            finalists = dict.fromkeys([*self._vary_settings(raced), *ties])
            if finalists:
                raced = self._race([*own, *finalists], self._left())
        return self._decide(raced)

    def build(self, only: Iterable[Choice] | None = None) -> None:
        """Build the given candidates. Default: all that are listed, while the budget allows it."""
        if only is not None:
            for choice in only:
                self._build(choice)
            return
        self._build_listed(None, _OWN_BUILT_AT if self._limits.layouts else _BUILT_AT)
        for layout in self._limits.layouts:
            self._build_listed(layout, _BUILT_AT)

    @property
    def built(self) -> tuple[Choice, ...]:
        """The candidates that were built, run, and found to be as exact as they have to be."""
        return (*self._built,)

    def _source(self, layout: Layout | None) -> _C.EnginePass:
        if layout not in self._sources:
            self._sources[layout] = self._sources[None].in_layout(layout == "channels_last")
        return self._sources[layout]

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return the calls of the candidates that were built, and PyTorch's, by name."""
        return {PYTORCH: self._theirs} | {str(one): each.run for one, each in self._built.items()}

    def _left(self) -> float:
        return self._end(1.0) - self._clock()

    def _end(self, share: float) -> float:
        """Return when a part of the budget will have been used."""
        return self._start + share * self._limits.budget

    def _build_listed(self, layout: Layout | None, share: float) -> None:
        usable = self._usable(layout)
        if layout is None and self._follows_list:
            self._find_pytorch_choice(usable)
        order = _each_engine_first(usable)
        chosen = order if layout is None else order[:_CONVERTED]
        listed_bytes = {choice: usable[choice]["workspace_bytes"] for choice in chosen}
        self._unbuilt += self._build_until(self._end(share), listed_bytes, [*self._built])

    def _build_until(
        self, end: float, choices: Mapping[Choice, int | None], rivals: Iterable[Choice]
    ) -> list[Choice]:
        """Build candidates, several at once, while they can still be raced, and run each.

        Args:
            end: when their race ends.
            choices: the candidates, with their workspaces in bytes if these are listed.
            rivals: candidates that were built before, and are in the race.

        Returns:
            Those for which there was no time.
        """
        waiting = collections.deque(choices.items())
        unbuilt: list[Choice] = []
        begun: dict[Future[tuple[int, Callable[[], None]]], Choice] = {}
        with ThreadPoolExecutor(self._threads) as threads:
            while waiting or begun:
                while waiting and len(begun) < self._threads:
                    choice, listed_bytes = waiting.popleft()
                    if self._was_tried(choice) or self._is_too_large(choice, listed_bytes):
                        continue
                    built = {*rivals, *choices} & self._built.keys()
                    candidates = len(self._promising(built)) + len(begun) + 1
                    none_ran = not (self._built or self._inexact)
                    has_time = self._clock() + candidates * _ALONE_SECONDS < end
                    if not (none_ran or has_time):
                        unbuilt.append(choice)
                        continue
                    build = self._source(choice.layout).build
                    begun[threads.submit(build, choice.tag)] = choice
                for ended in wait(begun, return_when=FIRST_COMPLETED).done:
                    self._try(begun.pop(ended), ended.result)
        self._run_slower_again(choices)
        return unbuilt

    def _run_slower_again(self, choices: Iterable[Choice]) -> None:
        """Time those that seem far slower again, now that no other thread builds engines."""
        built = {*choices} & self._built.keys()
        for choice in built.difference(self._promising(built)):
            candidate = self._built[choice]
            if candidate.seconds < _DELAYED_SECONDS:
                seconds = min(candidate.seconds, self._timed(candidate.run))
                self._built[choice] = dataclasses.replace(candidate, seconds=seconds)

    def _usable(self, layout: Layout | None) -> dict[Choice, dict[str, Any]]:
        """Return the engines that are listed and not excluded, as they are listed."""
        usable: dict[Choice, dict[str, Any]] = {}
        for listed in self._source(layout).engines():
            choice = Choice.of_tag(listed["tag"], layout)
            # The same engine is listed several times, and an unsupported configuration has none.
            ranges = listed["knob_ranges"] or self._ranges.get((choice.engine or 0, layout), [])
            self._ranges[choice.engine or 0, layout] = ranges
            why = listed["unsupported"] or listed["excluded"]
            if why:
                self._refused[str(choice)] = why.split("\n")[0].strip()
            else:
                usable[choice] = listed
        return usable

    def _find_pytorch_choice(self, usable: Mapping[Choice, Mapping[str, Any]]) -> None:
        """Build the list by which PyTorch selects up to the first engine that runs."""
        for choice, listed in usable.items():
            if not any(name == "instant" for name, _position in listed["places"]):
                continue
            if self._build(choice, listed["workspace_bytes"]):
                self.pytorch_choice = choice
                return
            if choice in self._above_limit:
                # PyTorch has no such limit: it would run this one.
                self._refused[PYTORCH] = self._refused[str(choice)]
                return

    def _was_tried(self, choice: Choice) -> bool:
        name = str(choice)
        return choice in self._built or name in self._refused or name in self._inexact

    def _promising(self, choices: Iterable[Choice]) -> list[Choice]:
        """Return those of the built candidates whose single runs are not far slower than others."""
        most = self._most_seconds()
        return [choice for choice in choices if self._built[choice].seconds <= most]

    def _most_seconds(self) -> float:
        """Return the longest time of a single run that is not far longer than others."""
        times = [each.seconds for each in self._built.values()]
        if PYTORCH not in self._refused:
            times.append(self._pytorch_seconds)
        return _FAR_SLOWER * min(times, default=float("inf"))

    def _timed(self, run: Callable[[], object]) -> float:
        """Return the time of a run as the host sees it: about the GPU's, and some microseconds."""
        _synchronize(self._sources[None].result)
        begin = self._clock()
        run()
        _synchronize(self._sources[None].result)
        return self._clock() - begin

    def _build(self, choice: Choice, listed_bytes: int | None = None) -> bool:
        """Build and run a candidate; return whether it runs, whatever its error is."""
        if self._is_too_large(choice, listed_bytes):
            return False
        return self._try(choice, lambda: self._source(choice.layout).build(choice.tag))

    def _try(self, choice: Choice, build: Callable[[], tuple[int, Callable[[], None]]]) -> bool:
        """Run a candidate that `build` returns; return whether it runs, whatever its error is."""
        source = self._source(choice.layout)
        try:
            workspace_bytes, run = build()
            if self._is_too_large(choice, workspace_bytes):
                return False
            results: list[torch.Tensor] = []
            times: list[float] = []
            while len(times) < _RUNS:
                source.result.fill_(float("nan"))  # an engine that writes nothing is not exact
                times.append(self._timed(run))
                results.append(source.result.clone())
                if len(times) > 1 and min(times) > self._most_seconds():  # the first one may load
                    break
            _synchronize(source.result)
        except RuntimeError as error:  # also out of memory; others may run
            _synchronize(source.result)  # raises if the GPU is unusable
            self._refused[str(choice)] = first_line(error)
            return False
        inexact = error_of(results[0], self._exact)
        repeats = all(same_bits(results[0], other) for other in results[1:])
        if self._limits.repeatable and not repeats:
            self._refused[str(choice)] = _NOT_REPEATABLE
        elif inexact is not None and not inexact <= self._allowed_error:
            self._inexact[str(choice)] = inexact
        else:
            self._built[choice] = _Built(run, min(times), workspace_bytes, inexact, repeats)
        return True

    def _is_too_large(self, choice: Choice, workspace_bytes: int | None) -> bool:
        limit = self._limits.workspace
        too_large = limit is not None and workspace_bytes is not None and workspace_bytes > limit
        if too_large:
            self._above_limit.add(choice)
            self._refused[str(choice)] = (
                f"its workspace of {workspace_bytes} bytes is above the limit of {limit}"
            )
        return too_large

    def _race(
        self, choices: Sequence[Choice | None], seconds: float, first: Choice | None = None
    ) -> Race:
        """Race candidates; None is PyTorch's. Without `first`, PyTorch's is preferred in ties."""
        runs: dict[str, Callable[[], object]] = {}
        # Among ties: the smallest workspace, then the engine's number.
        order: dict[str, tuple[int, int, str]] = {}
        for choice in choices:
            if choice is None:
                runs[PYTORCH], order[PYTORCH] = self._theirs, (0, 0, "")
            elif choice != self.pytorch_choice or None not in choices:
                name, built = str(choice), self._built[choice]
                runs[name] = built.run
                order[name] = built.workspace_bytes, choice.engine or 0, name
        preferred = PYTORCH if first is None else str(first)
        if len(runs) == 1:
            (one,) = runs
            return Race(one, one, (one,), (one,), self._limits.margin, {})
        return race(
            runs,
            key=lambda name: (name != preferred, *order[name]),
            check=None,
            margin=self._limits.margin,
            budget=max(seconds, _LEAST_SECONDS),
            progress=False,
            **self._options,
        )

    def _vary_settings(self, raced: Race) -> Iterator[Choice]:
        """Yield better settings of the fastest engines, if there are some."""
        starts: dict[tuple[int | None, Layout | None], Choice] = {}
        for name in sorted(raced.alone, key=lambda name: raced.alone[name].median):
            choice = self.pytorch_choice if name == PYTORCH else _choice_of(name)
            if choice is not None and choice in self._built:
                starts.setdefault((choice.engine, choice.layout), choice)
        searched = [*starts.values()][:_SEARCHED]
        for place, start in enumerate(searched):
            now = self._clock()
            end = now + (self._end(_VARIED_AT) - now) / (len(searched) - place)
            best = start
            while others := self._build_neighbors(best, end):
                seconds = (end - self._clock()) * _RACE_SHARE
                nearby = self._race([best, *self._promising(others)], seconds, first=best)
                winner = _choice_of(nearby.winner)
                if winner is None or winner == best:
                    break
                best = winner
            if best != start:
                yield best

    def _build_neighbors(self, choice: Choice, end: float) -> list[Choice]:
        """Build the choices that differ in one setting and were not tried before."""
        neighbors: dict[Choice, None] = {}
        for limits in self._ranges[choice.engine or 0, choice.layout]:
            current = dict(choice.knobs).get(limits["knob"])
            for value in _values_near(current, limits):
                other = choice.with_knob(limits["knob"], value)
                if value != current and not self._was_tried(other):
                    neighbors[other] = None
        self._build_until(end, neighbors, [choice])
        return [other for other in neighbors if other in self._built]

    def _decide(self, raced: Race) -> tuple[Choice, SearchFacts]:
        winner = _choice_of(raced.winner)
        # PyTorch's own plan is pinned where it is known: a later release may choose another.
        choice = winner or self.pytorch_choice or Choice("pytorch")
        built = self._built.get(choice)
        unbuilt = ((str(one), _NO_TIME) for one in self._unbuilt if not self._was_tried(one))
        theirs, ours, speedup = self._pair(raced, winner)
        return choice, SearchFacts(
            pytorch_tag=self.pytorch_choice.tag if self.pytorch_choice else "",
            pytorch_seconds=theirs,
            seconds=ours,
            speedup=speedup,
            error=built.error if built else self._pytorch_error,
            pytorch_error=self._pytorch_error,
            workspace_bytes=built.workspace_bytes if built else None,
            repeats=built.repeats if built else self._repeats(),
            raced=len(self._built),
            ties=raced.ties,
            # In the order of their names: threads end in any order.
            inexact=tuple(sorted(self._inexact.items())),
            refused=tuple(sorted((*self._refused.items(), *unbuilt))),
            budget_seconds=self._clock() - self._start,
        )

    def _pair(self, raced: Race, winner: Choice | None) -> tuple[float, float, Ratio]:
        """Return PyTorch's time, the winner's, and the speedup."""
        if winner is None:
            alone = raced.measurement(PYTORCH)
            if alone is None:
                pair = {PYTORCH: self._theirs, "again": self._theirs}
                alone = compare(pair, **self._pair_options()).measurements[PYTORCH]
            return alone.median, alone.median, Ratio(1.0, 1.0, 1.0)
        name = raced.winner
        last = raced.rounds[-1] if raced.rounds else None
        if last is None or not {PYTORCH, name} <= {*last.measurements}:
            # PyTorch's was dropped before: it took more than 1.5 times as long.
            last = compare(
                {name: self._built[winner].run, PYTORCH: self._theirs}, **self._pair_options()
            )
        theirs, ours = last.measurements[PYTORCH], last.measurements[name]
        return theirs.median, ours.median, last.ratio(PYTORCH, name)

    def _pair_options(self) -> dict[str, Any]:
        return {
            "check": None,
            "interference": False,
            "stop": "verdict",
            "budget": _PAIR_SECONDS,
            **self._options,
        }

    def _repeats(self) -> bool:
        first = self._theirs().clone()
        return all(same_bits(first, self._theirs()) for _ in range(_RUNS - 1))


def _choice_of(name: str) -> Choice | None:
    """Return the choice whose text is a name; None for PyTorch's."""
    if name == PYTORCH:
        return None
    tag, _, layout = name.partition(" in ")
    return Choice.of_tag(tag, layout or None)  # type: ignore[arg-type]  # one of Layout


def _each_engine_first(choices: Iterable[Choice]) -> list[Choice]:
    """Return the first setting of each engine, in the given order, then the second ones, ..."""
    earlier: dict[int | None, itertools.count[int]] = collections.defaultdict(itertools.count)
    turns = {choice: next(earlier[choice.engine]) for choice in choices}
    return sorted(turns, key=turns.__getitem__)


def _values_near(current: int | None, limits: Mapping[str, int]) -> list[int]:
    """Return values of a setting, those next to the current one if there are many."""
    step = max(limits["step"], 1)
    values = range(limits["minimum"], limits["maximum"] + 1, step)
    if len(values) <= _MOST_VALUES:
        return [*values]
    middle = limits["minimum"] if current is None else current
    place = (middle - limits["minimum"]) // step
    near = values[max(place - _MOST_VALUES, 0) : max(place, 0) + _MOST_VALUES + 1]
    return sorted(sorted(near, key=lambda value: abs(value - middle))[: _MOST_VALUES // 2 + 1])


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
