"""The rows: an operation without load and under load, or a diagnosis, in a fresh process."""

import contextlib
import functools
import math
import random
from collections.abc import Iterator

import results
import torch
from common import summaries
from common.families import log_uniform
from common.planting import describe_causes, diagnose_planted
from common.running import Call, Measure, run, run_fresh

from convtime import compare, time_op
from convtime.timing.options import Pages
from convtime.timing.sampling.calls import governed_pages
from cpu import FAMILIES, THREADS
from cpu.causes import CAUSES, CONTROLS, may_plant_quotas
from cpu.load import planted_load
from cpu.operations import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Interval,
    Pair,
    make_pair,
    true_ratio,
    true_seconds,
)

_PAIR_BUDGET_SECONDS = 0.8
_TIMED_BUDGET_SECONDS = 0.5
_DIAGNOSIS_SECONDS = 15.0
_MEAN_INTERVAL_SECONDS = (0.05, 0.5)
_PLANTED = (1.04, 1.06)
_MOST_DRAWS = 100
_MOST_LOOKS = 25  # draws that were timed, which takes half a second
_MOST_JUDGED = 4  # draws that were as required, and are drawn again if the machine is not quiet
_MOST_TIMINGS = 6
_TIMEOUT_SECONDS = 180.0
_QUIET = 0.05  # limit of the true time's drift and of its interval's width, relative to it


def make_cases(device: torch.device, seed: int, pairs: int) -> dict[str, Measure]:
    """Diagnoses first; then families alternate, and within each family the settings."""
    fresh = functools.partial(run_fresh, timeout=_TIMEOUT_SECONDS)
    cases: dict[str, Measure] = {
        key: functools.partial(fresh, diagnosis_row, device, key, str(seed))
        for key, plant in {**CAUSES, **CONTROLS}.items()
        if plant.cause != "quota" or may_plant_quotas()
    }
    for number in range(math.ceil(pairs / 2)):
        index, family = number // len(FAMILIES), FAMILIES[number % len(FAMILIES)]
        threads, pages = [*THREADS.values()][index % 2], ("fresh", "retained")[index // 2 % 2]
        key = f"{family}/{threads}/{seed}/{index}"
        cases[key] = functools.partial(fresh, operation_row, device, family, threads, pages, key)
    return cases


class NotQuietError(Exception):
    """The true time of an operation went on changing."""


def operation_row(
    _device: torch.device, family: str, threads: str, pages: Pages, seed: str
) -> results.Row:
    if threads == "1":
        torch.set_num_threads(1)
    chance = random.Random(seed)  # noqa: S311
    refused: list[str] = []
    for _ in range(_MOST_JUDGED):
        pair, truth = _draw(family, pages, chance, refused)
        try:
            judged = _judge(pair, pages, chance)
            break
        except NotQuietError as error:
            refused.append(f"{pair.what}: {error}")
    else:
        raise ValueError(f"none of {_MOST_JUDGED} draws was measured, the last: {refused[-1]}")
    return {
        "family": family,
        "threads": 1 if threads == "1" else 0,
        "pages": pages,
        "seed": seed,
        "what": pair.what,
        "draws": len(refused) + 1,
        "refused": refused,
        **truth,
        **judged,
    }


def diagnosis_row(_device: torch.device, key: str, seed: str) -> results.Row:
    plants = {**CAUSES, **CONTROLS}
    found, row = diagnose_planted(plants, key, seed, device="cpu", budget=_DIAGNOSIS_SECONDS)
    return {"seed": seed, "first": found.first, "causes": describe_causes(found.causes), **row}


def _draw(
    family: str, pages: Pages, chance: random.Random, refused: list[str]
) -> tuple[Pair, results.Row]:
    """A pair as required, and the truth about it."""
    looks = 0
    while len(refused) < _MOST_DRAWS and looks < _MOST_LOOKS:
        asked = log_uniform(chance, SHORTEST_SECONDS, LONGEST_SECONDS)
        with governed_pages(pages, on_gpu=False):
            try:
                pair = make_pair(family, chance, asked)
            except ValueError as error:
                refused.append(f"{family}: {error}")
                continue
            looks += 1
            seconds = true_seconds(pair.call)
            why = unrest(seconds, seconds)
            if not SHORTEST_SECONDS <= seconds.median <= LONGEST_SECONDS:
                why = f"it takes {1e6 * seconds.median:.1f} µs"
            if not why:
                ratio = true_ratio(pair.longer, pair.call).median
                if _PLANTED[0] <= ratio <= _PLANTED[1]:
                    return pair, {
                        "true_ratio": ratio,
                        "true_seconds": seconds.median,
                    }
                why = f"its true ratio is {ratio:.4f}"
        refused.append(f"{pair.what}: {why}")
    raise ValueError(f"none of {len(refused)} draws was as required, the last: {refused[-1]}")


def unrest(before: Interval, after: Interval) -> str:
    """What shows that the machine was not quiet; empty where nothing does."""
    drift = after.median / before.median - 1
    if abs(drift) > _QUIET:
        return f"the machine was not quiet: the time changed by {drift:+.1%}"
    width = max((each.high - each.low) / each.median for each in (before, after))
    if width > _QUIET:
        return f"the machine was not quiet: the time's interval is {width:.1%} wide"
    return ""


def _judge(pair: Pair, pages: Pages, chance: random.Random) -> dict[str, list[results.Row]]:
    """Compare and time a pair, first without load, so that no effect of the load is left."""
    pairs, timed = [], []
    for loaded in (False, True):
        for planted in (False, True):
            calls = {"a": pair.call, "b": pair.longer if planted else pair.copy}
            with _load(chance, loaded) as load:
                found = compare(calls, budget=_PAIR_BUDGET_SECONDS, pages=pages)
            pairs.append({"planted": planted, "load": load, **summaries.verdict_on(found, "b")})
        timed.append(_timed_between_truths(pair.call, pages, chance, loaded))
    return {"pairs": pairs, "timed": timed}


def _timed_between_truths(
    call: Call, pages: Pages, chance: random.Random, loaded: bool
) -> results.Row:
    refused: list[str] = []
    for _ in range(_MOST_TIMINGS):
        with governed_pages(pages, on_gpu=False):
            before = true_seconds(call)
        with _load(chance, loaded) as load:
            measured = time_op(call, budget=_TIMED_BUDGET_SECONDS, pages=pages)
        with governed_pages(pages, on_gpu=False):
            after = true_seconds(call)
        why = unrest(before, after)
        if not why:
            ends = measured.median_interval
            return {
                "load": load,
                "true_seconds_interval": [min(before.low, after.low), max(before.high, after.high)],
                "refused": refused,
                "median": measured.median,
                # An infinite end is not JSON-serializable; None stands for it.
                "interval": [end if math.isfinite(end) else None for end in ends],
                "disturbance": measured.disturbance,
                "repeats": measured.repeats,
            }
        refused.append(why)
    raise NotQuietError(f"none of {_MOST_TIMINGS} timings counts, the last since {refused[-1]}")


@contextlib.contextmanager
def _load(chance: random.Random, loaded: bool) -> Iterator[list[float]]:
    drawn = [log_uniform(chance, *_MEAN_INTERVAL_SECONDS) for _ in ("on", "off")]
    seed = str(chance.getrandbits(32))
    if not loaded:
        yield []
        return
    with planted_load(seed, *drawn):
        yield drawn


if __name__ == "__main__":
    # A/A pairs: each operation gives one without load and one under load.
    run("cpu", make_cases, on="cpu", seed=20261124, pairs=208)
