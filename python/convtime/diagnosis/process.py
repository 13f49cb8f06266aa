"""Time the same operation in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from convtime.core.child import Child, ChildError, ended, job
from convtime.diagnosis.evidence import Evidence, Timing
from convtime.diagnosis.operation import Operation, copies_in_other_memory
from convtime.timing.measurement import Measurement
from convtime.timing.time_op import time_op

_SECONDS = 0.3
_MOST_SECONDS = 60.0  # of a fresh process
_LARGEST_BYTES = 1 << 28


def obstacle(operation: Operation, evidence: Evidence) -> str:
    """Return why the operation cannot be recreated in another process; empty if it can."""
    if operation.again:
        return ""
    candidate = operation.candidate
    if candidate.before is not None or candidate.backward:
        return "the work before each call cannot be passed to another process"
    if getattr(candidate.fn, "__module__", None) == "__main__":
        return "its function is defined in the main program, which another process does not import"
    if sum(each.nbytes for each in operation.tensors) > _LARGEST_BYTES:
        return f"its arguments exceed {_LARGEST_BYTES >> 20} MiB, the limit for passing them on"
    return copies_in_other_memory(operation, evidence)


def time_in_fresh_one(operation: Operation) -> Timing:
    """Time the operation in a fresh process, with a warm cache.

    Raises:
        RuntimeError: the operation failed there.
        ValueError: the operation cannot be passed to the process.
    """
    try:
        return Timing.of(_repeated(operation.again) if operation.again else _timed_call(operation))
    except ChildError as error:
        raise ValueError(f"a fresh process {error}") from error


def _repeated(command: Sequence[str]) -> Measurement:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"gave no answer in {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise ended(done.returncode, done.stderr)
    return Measurement.from_dict(json.loads(done.stdout))


def _timed_call(operation: Operation) -> Measurement:
    candidate = operation.candidate
    with tempfile.TemporaryDirectory() as folder, Child() as child:
        path = Path(folder, "call.pt")
        call = (candidate.fn, candidate.args, dict(candidate.kwargs), str(operation.device))
        try:
            torch.save(call, path)
        except Exception as error:  # from pickle, or from an argument's pickling code
            raise ValueError(f"it cannot be passed to another process ({error})") from error
        measured: Measurement = child.call(job(_time, path), _MOST_SECONDS)
        return measured


def _time(path: Path) -> Measurement:
    # Safe to unpickle: the parent process just wrote it to a folder that only its user can access.
    fn, args, kwargs, device = torch.load(path, weights_only=False)
    options: dict[str, Any] = {"regime": "as-is", "placement": "as-is", "cache": "warm"}
    return time_op(
        fn, *args, kwargs=kwargs, device=device, budget=_SECONDS, exclusive=False, **options
    )
