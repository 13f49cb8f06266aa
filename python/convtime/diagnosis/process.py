"""Time the same operation in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from convtime.core import codec
from convtime.diagnosis.evidence import Evidence, Timing
from convtime.diagnosis.subject import Subject, copied_elsewhere
from convtime.timing.measurement import Measurement
from convtime.timing.time_op import time_op

_LONGEST_SECONDS = 60.0
_LARGEST_BYTES = 1 << 28


def obstacle(subject: Subject, evidence: Evidence) -> str:
    """Return why the operation cannot be recreated in another process; empty if it can."""
    if subject.again:
        return ""
    candidate = subject.candidate
    if candidate.before is not None or candidate.backward:
        return "the work before each call cannot be passed to another process"
    module = getattr(candidate.fn, "__module__", None)
    if module == "__main__":
        return "its function is defined in the main program, which another process does not import"
    if sum(each.nbytes for each in subject.tensors) > _LARGEST_BYTES:
        return f"its arguments exceed {_LARGEST_BYTES >> 20} MiB, the limit for passing them on"
    return copied_elsewhere(subject, evidence)


def time_in_fresh_one(subject: Subject) -> Timing:
    """Time the operation in a fresh process, with a warm cache.

    Raises:
        ValueError: the operation cannot be passed to the process, or failed there.
    """
    with _command(subject) as command:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_LONGEST_SECONDS,
                check=False,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except subprocess.TimeoutExpired as error:
            raise ValueError(
                f"a fresh process took longer than {_LONGEST_SECONDS:.0f} s"
            ) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"]
        raise ValueError(f"a fresh process failed: {said[-1]}")
    return Timing.of(Measurement.from_dict(json.loads(done.stdout)))


@contextmanager
def _command(subject: Subject) -> Iterator[Sequence[str]]:
    if subject.again:
        yield subject.again
        return
    candidate = subject.candidate
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "call.pt")
        call = (candidate.fn, candidate.args, dict(candidate.kwargs), str(subject.place.device))
        try:
            torch.save(call, path)
        except Exception as error:  # from pickle, or from an argument's pickling code
            raise ValueError(f"it cannot be passed to another process ({error})") from error
        yield sys.executable, "-m", __name__, str(path)


def main(path: str) -> None:
    """Time the call that the parent process saved, and print the result as JSON."""
    # Safe to unpickle: the parent process just wrote it to a folder that only its user can access.
    fn, args, kwargs, device = torch.load(path, weights_only=False)
    options: dict[str, Any] = {"regime": "as-is", "placement": "as-is", "cache": "warm"}
    measured = time_op(
        fn, *args, kwargs=kwargs, device=device, budget=0.3, exclusive=False, **options
    )
    print(codec.to_json(measured.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1])
