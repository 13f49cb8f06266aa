"""Measurements of one operation, without load and under load, in a fresh process."""

import contextlib
import math
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import results
import torch
from common.families import log_uniform
from common.planting import diagnose_planted, told_causes
from common.running import Call

from convtime import compare, time_op
from convtime.timing.options import Pages
from convtime.timing.sampling.calls import governed_pages
from cpu_parts.causes import CAUSES, CONTROLS
from cpu_parts.load import planted_load
from cpu_parts.operations import (
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
_QUIET = 0.05  # limit of the true time's drift and of its interval's width, relative to it


class NotQuietError(Exception):
    """The true time of an operation went on changing."""


class Settings(NamedTuple):
    family: str
    threads: int  # or 0 for PyTorch's default
    pages: Pages


class Known(NamedTuple):
    pair: Pair
    seconds: Interval
    ratio: Interval
    copy_ratio: Interval


def operation_row(settings: Settings, seed: str) -> results.Row:
    if settings.threads:
        torch.set_num_threads(settings.threads)
    chance = random.Random(seed)  # noqa: S311
    took: dict[str, float] = {}
    refused: list[str] = []
    for _ in range(_MOST_JUDGED):
        with _timed(took, "drawing"):
            known = _draw(settings, chance, refused)
        try:
            judged = _judge(known.pair, settings.pages, chance, took)
            break
        except NotQuietError as error:
            refused.append(f"{known.pair.what}: {error}")
    else:
        raise ValueError(f"none of {_MOST_JUDGED} draws was measured, the last: {refused[-1]}")
    return {
        **settings._asdict(),
        "used_threads": torch.get_num_threads(),
        "seed": seed,
        "what": known.pair.what,
        "draws": len(refused) + 1,
        "refused": refused,
        "true_ratio": known.ratio.median,
        "true_ratio_interval": known.ratio[1:],
        "true_copy_ratio": known.copy_ratio.median,
        "true_copy_ratio_interval": known.copy_ratio[1:],
        "true_seconds": known.seconds.median,
        **judged,
        "took": took,
    }


def diagnosis_row(key: str, seed: str) -> results.Row:
    plants = {**CAUSES, **CONTROLS}
    found, row = diagnose_planted(plants, key, seed, device="cpu", budget=_DIAGNOSIS_SECONDS)
    return {"seed": seed, "first": found.first, "causes": told_causes(found.causes), **row}


def _draw(settings: Settings, chance: random.Random, refused: list[str]) -> Known:
    looks = 0
    while len(refused) < _MOST_DRAWS and looks < _MOST_LOOKS:
        asked = log_uniform(chance, SHORTEST_SECONDS, LONGEST_SECONDS)
        with governed_pages(settings.pages, on_gpu=False):
            try:
                pair = make_pair(settings.family, chance, asked)
            except ValueError as error:
                refused.append(f"{settings.family}: {error}")
                continue
            looks += 1
            seconds = true_seconds(pair.call)
            if SHORTEST_SECONDS <= seconds.median <= LONGEST_SECONDS:
                why = unrest(seconds, seconds)
            else:
                why = f"it takes {1e6 * seconds.median:.1f} µs"
            if not why:
                ratio = true_ratio(pair.longer, pair.call)
                if not _PLANTED[0] <= ratio.median <= _PLANTED[1]:
                    why = f"its true ratio is {ratio.median:.4f}"
        if not why:
            with governed_pages(settings.pages, on_gpu=False):
                copy_ratio = true_ratio(pair.copy, pair.call)
            return Known(pair, seconds, ratio, copy_ratio)
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


def _judge(
    pair: Pair, pages: Pages, chance: random.Random, took: dict[str, float]
) -> dict[str, list[results.Row]]:
    """Compare and time a pair, first without load, so that no effect of the load is left."""
    pairs, timed = [], []
    for loaded in (False, True):
        for planted in (False, True):
            with _timed(took, "planted" if planted else "A/A"), _load(chance, loaded) as load:
                found = compared(pair.call, pair.longer if planted else pair.copy, pages)
                pairs.append({"planted": planted, "load": load, **found})
        timed.append(_timed_between_truths(pair.call, pages, chance, loaded, took))
    return {"pairs": pairs, "timed": timed}


def _timed_between_truths(
    call: Call, pages: Pages, chance: random.Random, loaded: bool, took: dict[str, float]
) -> results.Row:
    refused: list[str] = []
    for _ in range(_MOST_TIMINGS):
        with _timed(took, "truth"), governed_pages(pages, on_gpu=False):
            before = true_seconds(call)
        with _timed(took, "time_op"), _load(chance, loaded) as load:
            found = timed_alone(call, pages)
        with _timed(took, "truth"), governed_pages(pages, on_gpu=False):
            after = true_seconds(call)
        why = unrest(before, after)
        if not why:
            true = [min(before.low, after.low), max(before.high, after.high)]
            return {"load": load, "true_seconds_interval": true, "refused": refused, **found}
        refused.append(why)
    raise NotQuietError(f"none of {_MOST_TIMINGS} timings counts, the last since {refused[-1]}")


def compared(call: Call, other: Call, pages: Pages) -> results.Row:
    begin = time.perf_counter()
    found = compare({"a": call, "b": other}, budget=_PAIR_BUDGET_SECONDS, pages=pages)
    seconds = time.perf_counter() - begin
    ratio, judged = found.ratio("b"), found.judge("b")
    return {
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
        "disturbance": [found.measurements[name].disturbance for name in ("a", "b")],
        "seconds": seconds,
    }


def timed_alone(call: Call, pages: Pages) -> results.Row:
    begin = time.perf_counter()
    measured = time_op(call, budget=_TIMED_BUDGET_SECONDS, pages=pages)
    seconds = time.perf_counter() - begin
    return {
        "median": measured.median,
        # An infinite end is not JSON-serializable; None stands for it.
        "interval": [end if math.isfinite(end) else None for end in measured.median_interval],
        "disturbance": measured.disturbance,
        "pages": measured.pages.used,
        "repeats": measured.repeats,
        "seconds": seconds,
    }


@contextlib.contextmanager
def _load(chance: random.Random, loaded: bool) -> Iterator[list[float]]:
    drawn = [log_uniform(chance, *_MEAN_INTERVAL_SECONDS) for _ in ("on", "off")]
    seed = str(chance.getrandbits(32))
    if not loaded:
        yield []
        return
    with planted_load(seed, *drawn):
        yield drawn


@contextlib.contextmanager
def _timed(took: dict[str, float], what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    took[what] = took.get(what, 0.0) + time.perf_counter() - begin
