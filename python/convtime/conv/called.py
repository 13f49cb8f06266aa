"""Find the convolutions that a call runs, and the command that times them again."""

from __future__ import annotations

from collections.abc import Callable

from convtime.conv.binding import BoundCall
from convtime.conv.layouts import DTYPES, memory_format
from convtime.conv.model import WatchedConvolutions, problem_of
from convtime.conv.problem_line import ProblemLine
from convtime.timing.candidate import Candidate

# With more problems, no single one dominates the time.
_MOST_PROBLEMS = 8


def reproducer_of(candidate: Candidate) -> str:
    """Return the `convtime conv` command for the convolutions that one call runs.

    Empty if it runs none, or too many. This calls the candidate once.
    """
    if candidate.before is not None:
        candidate.before()
    called = convolutions_of(lambda: candidate.fn(*candidate.args, **candidate.kwargs))
    lines = list(dict.fromkeys(map(_line, called)))
    if not 0 < len(lines) <= _MOST_PROBLEMS:
        return ""
    return " ".join(["convtime conv", *lines, *(["--backward"] if candidate.backward else [])])


def convolutions_of(call: Callable[[], object]) -> list[BoundCall]:
    """Return the convolutions of a call, one entry per execution; this calls it once."""
    calls: list[BoundCall] = []
    with WatchedConvolutions(calls.append):
        call()
    return [each for each in calls if each.input.numel()]


def _line(call: BoundCall) -> str:
    x = call.input
    names = {dtype: name for name, dtype in DTYPES.items()}
    nhwc = memory_format("nhwc", x.dim())
    layout = "nhwc" if x.is_contiguous(memory_format=nhwc) and not x.is_contiguous() else "nchw"
    return str(ProblemLine(problem_of(call), names.get(x.dtype), layout))
