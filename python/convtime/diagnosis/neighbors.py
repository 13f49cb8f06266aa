"""Detect other users of the device with work of known duration, and create concurrent work."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import torch

from convtime.core.child import Child, ChildError, job
from convtime.device import nvml
from convtime.diagnosis.evidence import Evidence, Neighbors
from convtime.diagnosis.operation import Operation

Resource = Literal["bandwidth", "multiprocessors"]
RESOURCES: Final[tuple[Resource, ...]] = ("bandwidth", "multiprocessors")

_SPIN_SECONDS, _SPINS = 200e-6, 40
_LAUNCH_SECONDS = 1e-6  # launch and exit of each spin
_COPIED_BYTES = 256 << 20
_COPIES, _COPIES_AT_ONCE = 5, 8
_BESIDE_BYTES, _MOST_LAUNCHES = 1 << 30, 900  # the queue has room for about 1024
_BESIDE_SECONDS = 0.5  # duration of the concurrent work
_PIECE_SECONDS, _AT_ONCE = 1e-3, 8
_BEGIN_SECONDS = 60.0


def look_at_neighbors(operation: Operation, evidence: Evidence) -> Evidence:
    """Time known work on a GPU."""
    device, spin = operation.device, torch.ops.convtime.spin_ns
    with torch.cuda.device(device):
        spin(1000)
        known = functools.partial(spin, int(_SPIN_SECONDS * 1e9))
        neighbors = Neighbors(
            spin_expected=_SPINS * (_SPIN_SECONDS + _LAUNCH_SECONDS),
            spin=_between_events(known, _SPINS),
            copied_bytes_per_second=_copy_rate(device),
            highest_bytes_per_second=_highest_rate(device),
            other_processes=_other_processes(device),
        )
    return dataclasses.replace(evidence, neighbors=neighbors)


def _between_events(launch: Callable[[], object], count: int) -> float:
    """Return the seconds between events around several launches on the current stream."""
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        launch()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end))


def _copy_rate(device: torch.device) -> float:
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    copy = functools.partial(target.copy_, source)
    # Several at once: otherwise the first launch would count.
    seconds = statistics.median(_between_events(copy, _COPIES_AT_ONCE) for _ in range(_COPIES))
    return 2 * _COPIED_BYTES * _COPIES_AT_ONCE / seconds


def _highest_rate(device: torch.device) -> float | None:
    """Return the peak rate: memory clock times two transfers per cycle times bus width."""
    properties: Any = torch.cuda.get_device_properties(device)
    khz, bits = (
        getattr(properties, name, None) for name in ("memory_clock_rate", "memory_bus_width")
    )
    return 2 * khz * 1e3 * bits / 8 if khz and bits else None


def _other_processes(device: torch.device) -> int | None:
    try:
        with nvml.session(device) as gpu:
            processes = gpu.ask("ComputeRunningProcesses_v3")
    except nvml.NvmlUnavailableError:  # optional: only one of several signs
        return None
    return None if processes is None else max(0, len({each.pid for each in processes}) - 1)


@contextlib.contextmanager
def in_a_stream(device: torch.device, resource: Resource) -> Iterator[None]:
    """Keep another stream of the GPU busy while the block runs, for at most half a second."""
    with torch.cuda.device(device):
        make: Any = torch.cuda.Stream  # which is not typed
        side = make()
        with torch.cuda.stream(side):
            piece, seconds = _piece(device, resource)
            for _ in range(min(_MOST_LAUNCHES, int(_BESIDE_SECONDS / seconds))):
                piece()
        try:
            yield
        finally:
            side.synchronize()


@contextlib.contextmanager
def in_a_process(device: torch.device, resource: Resource) -> Iterator[None]:
    """Keep a GPU busy from another process while the block runs.

    Raises:
        ValueError: the other process did not start.
    """
    with Child(job(_keep_busy, device, resource)) as process:
        try:
            process.await_start()
        except ChildError as error:
            raise ValueError(f"the concurrent process on the GPU {error}") from error
        try:
            yield
        finally:
            process.end()


def _piece(device: torch.device, resource: Resource) -> tuple[Callable[[], object], float]:
    """Return work that uses up a resource of a GPU, and its least duration in seconds."""
    if resource == "multiprocessors":
        count = torch.cuda.get_device_properties(device).multi_processor_count
        spin = torch.ops.convtime.spin_ns
        return lambda: spin(int(_PIECE_SECONDS * 1e9), count // 2, 1024), _PIECE_SECONDS
    source = torch.empty(_BESIDE_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * _BESIDE_BYTES / (_highest_rate(device) or 1e12)


def _keep_busy(device: torch.device, resource: Resource) -> None:
    """Keep a GPU busy until the process ends."""
    begun = threading.Event()

    def work() -> None:
        event: Any = torch.cuda.Event
        with torch.cuda.device(device):
            piece, _ = _piece(device, resource)
            done = event()
            while True:
                for _ in range(_AT_ONCE):
                    piece()
                done.synchronize()  # of the previous pieces: the queue never drains
                done.record()
                begun.set()

    threading.Thread(target=work, daemon=True).start()
    if not begun.wait(_BEGIN_SECONDS):
        raise TimeoutError(f"no work ran within {_BEGIN_SECONDS:.0f} s")
