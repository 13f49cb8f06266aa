"""A pair of interpreters that run the same layers or tests on one GPU."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from typing import Any

from convtime.core.checks import require
from convtime.core.errors import InputError
from convtime.upgrading.workers import Side

_AT_ONCE = 4  # pairs of processes, each with torch and a CUDA context


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """Two interpreters and what both run.

    Attributes:
        old: path of the old interpreter.
        new: path of the new one.
        program: the file that both run, and the file's arguments.
        load: the question that loads the layers or tests; see probe.py and pytest_probe.py.
        command: command that runs a layer or test again, before its name.
    """

    old: str
    new: str
    program: tuple[str, ...]
    load: Mapping[str, Any]
    command: str

    def pairs(self, count: int, *, first_logs: bool = False) -> Generator[tuple[Side, Side]]:
        """Yield pairs of fresh processes; a pair ends before the next one is yielded.

        They start together, since the import of torch takes longer than many timings, and before
        the first pair is yielded, since it would disturb these.

        Args:
            count: number of pairs.
            first_logs: whether cuDNN's frontend logs its plans in the first pair.

        Raises:
            InputError: an interpreter cannot be used, or they use different GPUs.
        """
        for first in range(0, count, _AT_ONCE):
            with contextlib.ExitStack() as processes:
                waiting: list[tuple[Side, Side]] = []
                for number in range(first, min(count, first + _AT_ONCE)):
                    logs = first_logs and number == 0
                    old, new = (
                        processes.enter_context(
                            Side(which, python, self.program, self.load, logs=logs)
                        )
                        for which, python in (("old", self.old), ("new", self.new))
                    )
                    old.start()
                    new.start()
                    waiting.append((old, new))
                started, error = _await_start(waiting)
                for sides in started:
                    yield _load(sides)
                    for side in sides:
                        side.end()
                if error is not None:
                    raise error


def _await_start(
    waiting: list[tuple[Side, Side]],
) -> tuple[list[tuple[Side, Side]], InputError | None]:
    """Wait for pairs; return those before the first that does not start, and why it does not."""
    started: list[tuple[Side, Side]] = []
    try:
        for sides in waiting:
            for side in sides:
                side.await_start()
            started.append(sides)
    except InputError as error:
        return started, error
    return started, None


def _load(sides: tuple[Side, Side]) -> tuple[Side, Side]:
    """Load the layers or tests in both."""
    for side in sides:
        side.load()
    old, new = (side.environment["gpu_uuid"] for side in sides)
    require(
        old == new,
        f"--old and --new must run on the same GPU, but used {old} and {new}; "
        "set CUDA_VISIBLE_DEVICES",
    )
    return sides
