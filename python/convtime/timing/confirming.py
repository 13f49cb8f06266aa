"""Repeat a comparison in a fresh process.

One process is a single sample of conditions that differ between processes, such as memory pages.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import torch

from convtime.core.child import Child, ChildError, job
from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate
from convtime.timing.comparison import Comparison
from convtime.timing.verdict import Ratio

#: Time allowed in addition to the timing.
_PATIENCE_SECONDS = 120.0


def fresh() -> Child:
    """Return a process that uses as many threads as this one."""
    return Child(job(torch.set_num_threads, torch.get_num_threads()))


def confirm(compare: bytes, seconds: float) -> Mapping[str, Ratio]:
    """Return the ratios that a fresh process measures, by name.

    Args:
        compare: a job that returns a comparison.
        seconds: time that the timing may take in that process.

    Raises:
        RuntimeError: if that process fails.
    """
    try:
        with fresh() as child:
            compared: Comparison = child.call(compare, _PATIENCE_SECONDS + seconds)
    except ChildError as error:
        raise RuntimeError(f"the fresh process to confirm this {error}") from error
    return {name: compared.ratio(name) for name in compared.others}


def check_sendable(candidates: Sequence[Candidate], what: str) -> None:
    """Check that a fresh process can have the candidates.

    Args:
        candidates: the candidates.
        what: the option that asks for the process.

    Raises:
        ValueError: for one that cannot be sent.
    """
    for candidate in candidates:
        _check(candidate, what)


def _check(candidate: Candidate, what: str) -> None:
    try:
        for function in (candidate.fn, candidate.before):
            # Pickle would send it by a name that the fresh process does not define.
            if getattr(function, "__module__", None) == "__main__":
                name = getattr(function, "__qualname__", function)
                raise pickle.PicklingError(f"{name} is defined in __main__")
        pickle.dumps(candidate)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{what} sends the candidates to a fresh process, and {candidate.name!r} cannot "
            f"be sent ({first_line(error)}); define its function in a module"
        ) from error
