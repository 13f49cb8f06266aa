"""Run a race in a child process, and replace it when a candidate makes it unusable."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any

from convtime.timing.agreement import Check
from convtime.timing.candidate import Candidate
from convtime.timing.confirming import fresh_environment, send
from convtime.timing.options import Options
from convtime.tuning.heats import Tell, none_left
from convtime.tuning.race_result import Dropped, Race

_CHILD = "convtime.tuning.child"
_START_SECONDS = 120.0  # mostly for the import of torch
_MARGIN_SECONDS = 10.0  # for the child to report a timeout itself
_LONGEST_ROUND = 20.0  # times the planned duration of the race, beyond the timeout


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is raced, and how.

    Attributes:
        candidates: by name.
        reference: a candidate whose result is right; None for the first of the candidates.
        check: how results are compared; None for no check.
        order: names in the order that breaks ties.
        seconds: planned duration.
        options: the timing options; ``timeout`` limits the first timing of each candidate.
        thorough: whether each candidate is first timed for longer, to find one that fails later.
    """

    candidates: Mapping[str, Candidate]
    reference: Candidate | None
    check: Check | None
    order: Sequence[str]
    seconds: float
    options: Options
    thorough: bool = False

    def without(self, names: Mapping[str, Dropped]) -> Plan:
        """Return the plan without some candidates."""
        return dataclasses.replace(
            self,
            candidates={name: each for name, each in self.candidates.items() if name not in names},
            order=[name for name in self.order if name not in names],
        )


class _ChildEndedError(Exception):
    """The child process cannot go on.

    Attributes:
        name: the candidate that it was timing alone; empty in a round.
        reason: in words, for the result.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


def run(plan: Plan, tell: Tell) -> Race:
    """Run a race in child processes, each without the candidates that ended the ones before.

    Raises:
        RuntimeError: no candidate is left, several make the process end only together, or the child
            fails for another reason.
        ValueError: a candidate cannot be sent to another process.
    """
    start = time.monotonic()
    dropped: dict[str, Dropped] = {}
    while True:
        left = plan.without(dropped)
        if not left.candidates:
            raise none_left(dropped)
        started = time.monotonic() - start
        try:
            race = _run_once(left, tell)
        except _ChildEndedError as ended:
            if ended.name:
                dropped[ended.name] = Dropped(ended.reason, "alone", time.monotonic() - start)
                continue
            if not plan.thorough:
                plan = dataclasses.replace(plan, thorough=True)
                continue
            names = ", ".join(map(repr, left.candidates))
            raise RuntimeError(
                f"some of the candidates {names} can be timed alone, but not together: "
                f"{ended.reason}; race fewer"
            ) from None
        later = {
            name: dataclasses.replace(drop, seconds=drop.seconds + started)
            for name, drop in race.dropped.items()
        }
        return dataclasses.replace(
            race,
            order=tuple(plan.order),
            dropped=dropped | later,
            seconds=time.monotonic() - start,
        )


def _run_once(plan: Plan, tell: Tell) -> Race:
    """Run a race in one child process."""
    sent = send(
        [*plan.candidates.values(), *([plan.reference] if plan.reference else [])],
        {"plan": plan},
        what="isolated=True",
    )
    with tempfile.TemporaryFile() as errors, _child(errors) as (process, pipe):
        with contextlib.suppress(BrokenPipeError):  # then it has ended, which recv() notices
            pipe.send_bytes(sent)
        name, patience, has_begun = "", _START_SECONDS, False
        while pipe.poll(patience):
            try:
                kind, told = pipe.recv()
            except (EOFError, OSError):
                process.wait()
                why = _why(process, errors)
                if not has_begun:
                    raise RuntimeError(f"the isolated race could not begin: {why}") from None
                raise _ChildEndedError(name, why) from None
            if kind == "race":
                return Race.from_dict(told)
            if kind == "unusable":
                raise _ChildEndedError(*told)
            if kind == "failed":
                raise RuntimeError(told)
            tell(kind, told)
            has_begun = True
            alone = kind == "alone"
            name = told[0] if alone else ""
            patience = float(plan.options.timeout or 0.0) + _MARGIN_SECONDS
            patience += 0.0 if alone else _LONGEST_ROUND * plan.seconds
        raise _ChildEndedError(name, f"it had not ended after {patience:.0f} s")


@contextlib.contextmanager
def _child(errors: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], Connection[Any, Any]]]:
    """Start the child process, with a pipe to it; kill it at the end."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", _CHILD, str(theirs.fileno())],
            env=fresh_environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        try:
            theirs.close()  # so that the pipe ends with the child
            yield process, ours
        finally:
            process.kill()
            process.wait()


def _why(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    code = process.returncode
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    said = f" ({' '.join(lines[-1].split())})" if lines else ""
    return f"it ended its process {how}{said}"
