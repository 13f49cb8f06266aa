"""Pairs of a family, drawn until one is as asked for."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import NamedTuple

import results
import torch
from common.running import Call

from overlap_parts.truth import elapsed, ratio_interval

_CLOSE = (0.9, 1.1)
_SHORTEST_SECONDS = 400e-6
_LOOK_ROUNDS, _ROUNDS = 5, 31
_MOST_DRAWS = 25
#: Of an interval. A wider one is of a pair whose parts overlap in some rounds and not in others.
_WIDEST = 0.01
#: Of the margin's edges: a ratio that is closer to one says nothing about verdicts.
_EDGE, _APART = 0.01, 0.004


class Pair(NamedTuple):
    """The same work, issued in two ways."""

    in_line: Call
    overlapping: Call
    what: str


def refusal(ratio: float, seconds: float, *, close: bool) -> str:
    """Why a pair is drawn again; empty where it is not."""
    if seconds < _SHORTEST_SECONDS:
        return "too short"
    if abs(abs(ratio - 1) - _EDGE) < _APART:
        return "at the margin's edge"
    if (_CLOSE[0] <= ratio <= _CLOSE[1]) != close:
        return "too far from 1" if close else "too close to 1"
    return ""


def draw_pair(
    make: Callable[[random.Random, torch.device], Pair],
    seed: str,
    *,
    close: bool,
    device: torch.device,
) -> tuple[Pair, results.Row]:
    """The first pair whose true ratio is within 0.9 and 1.1, or is not, and what is known of it.

    Raises:
        ValueError: None of as many as are tried.
    """
    chance = random.Random(seed)  # noqa: S311
    refused: list[str] = []
    while len(refused) < _MOST_DRAWS:
        pair = make(chance, device)
        look = elapsed([pair.in_line, pair.overlapping], _LOOK_ROUNDS)
        ratio, _, _ = ratio_interval(look[1], look[0])
        why = refusal(ratio, min(map(statistics.median, look)), close=close)
        if not why:
            in_line, overlapping = elapsed([pair.in_line, pair.overlapping], _ROUNDS)
            ratio, low, high = ratio_interval(overlapping, in_line)
            shortest = min(map(statistics.median, (in_line, overlapping)))
            why = refusal(ratio, shortest, close=close)
            if high - low > _WIDEST:
                why = f"its interval is {low:.4f} to {high:.4f}"
        if not why:
            return pair, {
                "what": pair.what,
                "draws": len(refused) + 1,
                "refused": refused,
                "true_ratio": ratio,
                "true_interval": [low, high],
                "true_seconds": [statistics.median(in_line), statistics.median(overlapping)],
            }
        refused.append(f"{pair.what}: {ratio:.4f}, {why}")
        del pair
    raise ValueError(f"none of {_MOST_DRAWS} pairs was as asked for, the last {refused[-1]}")
