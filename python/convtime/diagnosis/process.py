"""Time the same operation in a fresh process."""

from __future__ import annotations

import json
import pickle
import sys

from convtime.core import codec
from convtime.diagnosis.evidence import Evidence, Timing
from convtime.diagnosis.operation import Operation, copied_elsewhere
from convtime.timing.confirming import run_fresh, send
from convtime.timing.measurement import Measurement
from convtime.timing.time_op import time_op

_SECONDS = 0.3
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
    return copied_elsewhere(operation, evidence)


def time_in_fresh_one(operation: Operation) -> Timing:
    """Time the operation in a fresh process, with a warm cache.

    Raises:
        RuntimeError: the operation failed there.
        ValueError: the operation cannot be passed to the process.
    """
    command = operation.again or (sys.executable, "-m", __name__)
    sent = b""
    if not operation.again:
        sent = send([operation.candidate], {"device": operation.place.device}, "the contrast")
    return Timing.of(Measurement.from_dict(json.loads(run_fresh(command, _SECONDS, sent))))


def main() -> None:
    """Time the call that the parent process sent, and print the result as JSON."""
    sent = pickle.load(sys.stdin.buffer)  # noqa: S301  # sent by the parent process
    (candidate,) = sent["candidates"].values()
    measured = time_op(
        candidate,
        **sent["options"],
        regime="as-is",
        placement="as-is",
        cache="warm",
        budget=_SECONDS,
        exclusive=False,
    )
    print(codec.to_json(measured.to_dict()))


if __name__ == "__main__":
    main()
