"""A pair of interpreters that run the same layers or tests on one GPU."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from convtime.core.errors import InputError
from convtime.upgrading.workers import Side


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

    @contextlib.contextmanager
    def pair(self, *, logs: bool = False) -> Iterator[tuple[Side, Side]]:
        """Start a pair of processes and load the layers or tests in both.

        Raises:
            InputError: an interpreter cannot be used, or they use different GPUs.
        """
        with (
            Side("old", self.old, self.program, self.load, logs=logs) as old,
            Side("new", self.new, self.program, self.load, logs=logs) as new,
        ):
            old.begin()
            new.begin()  # both import torch at the same time
            old.load()
            new.load()
            gpus = [side.environment["gpu_uuid"] for side in (old, new)]
            if gpus[0] != gpus[1]:
                raise InputError(
                    f"--old and --new must run on the same GPU, but used {gpus[0]} and {gpus[1]}; "
                    "set CUDA_VISIBLE_DEVICES"
                )
            yield old, new
