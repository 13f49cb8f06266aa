"""Whether `compare(..., over=...)` names the fastest candidates of each point.

A row is a family of two to four candidates over an axis: compared with default options, and then
timed again exhaustively: by torch.profiler's traces, in several rounds with new tensors each, whose
place in memory matters. A candidate is among the fastest if its time exceeds the shortest by at
most the margin. At a point, the table is right if its leaders are these candidates; one whose time
is within the row's "edge" of the margin may be among them or not. It is opposite if all of its
leaders are slower than the fastest candidate by more than margin and edge.
"""

import results
from common import summaries


def summarise(rows: list[results.Row]) -> dict[str, float]:
    points = [(row, point) for row in rows for point in row["points"]]
    return summaries.known(
        families=len(rows),
        points=len(points),
        winner_or_tie_right=summaries.share(is_right(*each) for each in points),
        opposite=sum(is_opposite(*each) for each in points) if points else None,
    )


def _excesses(point: results.Row) -> dict[str, float]:
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
