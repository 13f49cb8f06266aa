"""Whether `compare(..., over=...)` names the fastest candidates of each point.

A row is a family of two to four candidates over an axis: compared with default options, and then
timed again exhaustively. On a GPU, torch.profiler's traces give these times, in several rounds with
new tensors each, whose place in memory matters; on the CPU, Python's clock (--device cpu). A
candidate is among the fastest if its time exceeds the shortest by at most the margin. At a point,
the table is right if its leaders are these candidates; one whose time is within the row's "edge" of
the margin may be among them or not. It is opposite if all of its leaders are slower than the
fastest candidate by more than margin and edge.

On the CPU, a difference of less than 3 % is not certain, and the edge is larger.
"""

import functools
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

import results
from common import running, summaries

BUDGET = 0.5  # seconds a point
_EDGE, _EDGE_ON_CPU = 0.005, 0.02
_ROUNDS, _CALLS = 8, 20  # of each candidate, in torch.profiler
_SECONDS_ON_CPU = 0.6  # a point


def summarise(rows: list[results.Row]) -> dict[str, float]:
    points = [(row, point) for row in rows for point in row["points"]]
    return summaries.known(
        families=len(rows),
        points=len(points),
        winner_or_tie_right=summaries.share(is_right(*each) for each in points),
        opposite=sum(is_opposite(*each) for each in points) if points else None,
    )


def _excesses(point: results.Row) -> dict[str, float]:
    """Each candidate's time over the shortest, less 1."""
    least = min(point["seconds"].values())
    return {name: seconds / least - 1 for name, seconds in point["seconds"].items()}


def is_right(row: results.Row, point: results.Row) -> bool:
    leaders = set(point["leaders"])
    excesses = _excesses(point)
    certain = {name for name, more in excesses.items() if more <= row["margin"] - row["edge"]}
    possible = {name for name, more in excesses.items() if more <= row["margin"] + row["edge"]}
    return bool(leaders) and certain <= leaders <= possible


def is_opposite(row: results.Row, point: results.Row) -> bool:
    excesses = _excesses(point)
    leading = [excesses[name] for name in point["leaders"]]
    return bool(leading) and min(leading) > row["margin"] + row["edge"]


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        for point in row["points"]:
            least, following, *_ = sorted((more, name) for name, more in _excesses(point).items())
            found = f"{', '.join(point['leaders'])} ({point['kind']})"
            after = f"{following[1]} +{following[0]:.1%}"
            right = summaries.yes(is_right(row, point))
            lines.append((row["key"], point["name"], found, least[1], after, right))
    header = "family | point | found | fastest when timed again | next: | right"
    return summaries.markdown(header, lines)


def _measure_family(device: running.Device, family: Any) -> results.Row:
    import convtime

    begin = time.perf_counter()
    compared = convtime.compare(
        family.candidates,
        over={family.axis: family.values},
        check=None,
        budget=BUDGET,
        device=device,
        seed=0,
        progress=False,
    )
    seconds = time.perf_counter() - begin
    for point in compared.points:
        if point.errors:
            raise RuntimeError(f"{point.name}: {dict(point.errors)}")
    return {
        "points": [
            {
                "name": point.name,
                "kind": compared.outcomes[point.name].kind,
                "leaders": list(compared.outcomes[point.name].leaders),
                "seconds": _time_again(family, point.values, device),
            }
            for point in compared.points
        ],
        "margin": compared.plan.margin,
        "edge": _EDGE if device.type == "cuda" else _EDGE_ON_CPU,
        "verdict": list(compared.verdict),
        "crossovers": [str(each) for each in compared.crossovers],
        "seconds": seconds,
    }


def _time_again(family: Any, values: Mapping[str, Any], device: running.Device) -> dict[str, float]:

    def make() -> dict[str, running.Call]:
        made = {name: factory(**values) for name, factory in family.candidates.items()}
        return {
            name: functools.partial(each.fn, *each.args, **each.kwargs)
            for name, each in made.items()
        }

    if device.type == "cpu":
        from cpu_parts.operations import interleaved

        calls = make()
        found = interleaved([*calls.values()], _SECONDS_ON_CPU, 15)
        return dict(zip(calls, map(statistics.median, found), strict=True))
    from common.truth import profile_calls

    chance = random.Random(0)  # noqa: S311  # not a secret
    busy: dict[str, list[float]] = {name: [] for name in family.candidates}
    kept = []  # so that each round's tensors are elsewhere in memory
    for _ in range(_ROUNDS):
        kept.append(calls := make())
        for name in chance.sample([*calls], len(calls)):
            traced = profile_calls(calls[name], _CALLS, cold=True).busy
            busy[name].append(statistics.median(traced))
    return {name: statistics.median(each) for name, each in busy.items()}


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    import torch
    from compare_over_parts.families import make_families

    if device.type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
    return {
        name: functools.partial(_measure_family, device, family)
        for name, family in make_families(device).items()
    }


def tell(row: results.Row) -> str:
    right = sum(is_right(row, point) for point in row["points"])
    told = "; ".join(row["verdict"])
    return f"{right} of {len(row['points'])} right, {row['seconds']:.1f} s: {told}"


if __name__ == "__main__":
    running.run_on_gpu("compare_over", __doc__, summarise, make_cases, tell=tell, anywhere=True)
