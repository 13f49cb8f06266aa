"""The rows: pairs that are drawn, timed by stamps, and compared."""

import functools

import results
import torch
from common import summaries
from common.running import Measure, run

from convtime import compare
from overlap import FAMILIES
from overlap.pairs import MAKERS
from overlap.truth import draw_pair


def make_cases(device: torch.device, seed: int, pairs: int) -> dict[str, Measure]:
    cases: dict[str, Measure] = {}
    for number in range(pairs):
        index, family = number // len(FAMILIES), FAMILIES[number % len(FAMILIES)]
        cases[f"{family}/{seed}/{index}"] = functools.partial(
            measure, family, f"{seed}/{family}/{index}", device, close=index % 2 == 0
        )
    return cases


def measure(family: str, seed: str, device: torch.device, *, close: bool) -> results.Row:
    pair, drawn = draw_pair(MAKERS[family], seed, close=close, device=device)
    compared = compare({"in line": pair.in_line, "overlapping": pair.overlapping}, check=None)
    base, other = (compared.measurements[name] for name in ("in line", "overlapping"))
    row = {
        "family": family,
        "seed": seed,
        **drawn,
        **summaries.verdict_on(compared, "overlapping"),
        "method": other.method.used,
    }
    for metric in ("span", "sum"):
        under, over = (getattr(each, f"{metric}_seconds") for each in (base, other))
        # A method may not know these times.
        row[f"{metric}_ratio"] = summaries.median_ratio(over, under) if over and under else None
    return row


if __name__ == "__main__":
    run("overlap", make_cases, seed=20261124, pairs=30)
