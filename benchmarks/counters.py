"""How far convtime's hardware counters lie from ncu's on the same kernels, and what they leave.

A row is an operation of one kernel, counted in this process by `convtime.counters` after a flush
that leaves clean lines, and in a process of its own by `ncu --clock-control none --cache-control
all`, which flushes likewise. That also empties the caches of instructions; in this process, other
kernels run before each call. Both count it on several tensors, since cycles depend on addresses,
too. Errors are of medians; those of bytes are of what ncu counted more than 1 MB of. Two more rows
have an operation's time before and after the counting.
"""

import collections
import csv
import functools
import glob
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import results
from common import running, summaries

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
CYCLES = "sm__cycles_elapsed.max"
METRICS = (READ, WRITTEN, CYCLES)
REPEATS = 41  # each on tensors of its own
SMALLEST_BYTES = 1e6
# Each of one kernel: ncu flushes the cache before each, and convtime before each call.
COUNTED = (
    "relu 4Mi fp32",
    "relu 64Mi fp32",
    "add 16Mi fp32",
    "softmax 4096 fp32",
    "matmul 2048 bf16",
    "matmul 4096 bf16",
    "conv 32x64x56x56 fp16 channels_last",
)
TIMED = ("relu 1Mi fp32", "matmul 2048 bf16")
_NCU_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")


def make_cases(device: running.Device) -> dict[str, running.Measure]:
    """Times first: nothing is to have been counted in the process before."""
    return {
        **{f"time of {name}": functools.partial(time_around, device, name) for name in TIMED},
        **{name: functools.partial(count, device, name) for name in COUNTED},
    }


class Places:
    def __init__(self, device: running.Device, name: str) -> None:
        from common.operations import operation

        self.calls = [operation(name, device) for _ in range(REPEATS)]
        self._next = itertools.cycle(self.calls)
        self._call = self.calls[0]
        self._others = other_kernels(device)

    def move(self) -> None:
        """To the next tensors, with other kernels' instructions in the caches."""
        self._call = next(self._next)
        for call in self._others:
            call()

    def __call__(self) -> object:
        return self._call()


def other_kernels(device: running.Device) -> list[running.Call]:
    """Matrix products by kernels of several sizes, in dtypes that none of those counted has."""
    import torch

    calls: list[running.Call] = []
    for dtype, side in itertools.product(
        (torch.float32, torch.float64, torch.float16), (200, 512, 1000, 2048)
    ):
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        calls += [functools.partial(torch.mm, a, other) for other in (b, b.t())]
    return calls


def count(device: running.Device, name: str) -> results.Row:
    import convtime

    by_ncu = ncu_medians(device)
    if isinstance(by_ncu, str):
        raise RuntimeError(by_ncu)
    places = Places(device, name)
    counters = convtime.counters(
        places,
        before=places.move,
        metrics=METRICS,
        repeats=REPEATS,
        cache="cold-clean",
        device=device,
    )
    launches = sum(kernel.launches for kernel in counters.kernels)
    if launches != 1:
        raise RuntimeError(f"{name} launches {launches} kernels, and is to launch one")
    return {
        "convtime": {metric: counters[metric] for metric in METRICS},
        "ncu": by_ncu[name],
    }


def time_around(device: running.Device, name: str) -> results.Row:
    from common.operations import operation

    import convtime

    call = operation(name, device)
    before = convtime.time_op(call, device=device).median
    convtime.counters(call, device=device)
    return {"before": before, "after": convtime.time_op(call, device=device).median}


def launch(device: running.Device, *names: str) -> results.Row:
    """What ncu watches: operations as often as convtime counts them, after a call that loads."""
    import torch

    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for name in names:
        places = Places(device, name)
        places()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        for call in places.calls:
            call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()
    return {}


@functools.cache  # a failure, too, which would take as long each time
def ncu_medians(device: running.Device) -> dict[str, dict[str, float]] | str:
    """Of each operation, the medians of ncu's metrics; or why there are none."""
    from common.calls import record
    from common.operations import operation

    # Those of one kernel can be told apart in what ncu says.
    recorded = record({name: operation(name, device) for name in COUNTED})
    names = [
        name
        for name, activities in recorded.items()
        if [activity.kind for activity in activities].count("kernel") == 1
    ]
    try:
        return medians(_ncu_output(device, names), names)
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)


def _ncu_output(device: running.Device, names: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            *(find_ncu(), "--clock-control", "none", "--cache-control", "all"),
            *("--profile-from-start", "off", "--target-processes", "application-only"),
            *("--metrics", ",".join(METRICS), "--csv", "--print-units", "base"),
            *("--log-file", str(log)),
            *(sys.executable, *running.fresh_call(launch, device, *names)),
        ]
        done = running.capture(command, timeout=120)
        output = log.read_text() if log.exists() else ""
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    if done.returncode or errors:
        said = [*errors, *done.stderr.strip().splitlines(), f"it ended with {done.returncode}"]
        raise RuntimeError(f"ncu failed: {said[0]}")
    return output


def find_ncu() -> str:
    on_path = shutil.which("ncu")
    places = sorted(path for pattern in _NCU_PLACES for path in glob.glob(pattern))
    for path in (on_path, *reversed(places)):
        if path and os.access(path, os.X_OK):
            return path
    raise RuntimeError("there is no ncu on this machine to compare with")


def medians(text: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each operation, whose kernels follow each other in ncu's CSV, those of its metrics."""
    values: dict[str, list[float]] = collections.defaultdict(list)
    for line in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        values[line["Metric Name"]].append(float(line["Metric Value"].replace(",", "")))
    wanted = REPEATS * len(names)
    if any(len(values[metric]) != wanted for metric in METRICS):
        raise RuntimeError(f"ncu must count {wanted} launches, and does not of each metric")
    return {
        name: {
            metric: statistics.median(values[metric][REPEATS * place : REPEATS * (place + 1)])
            for metric in METRICS
        }
        for place, name in enumerate(names)
    }


def summarise(rows: list[results.Row]) -> dict[str, float]:
    counted = [row for row in rows if "ncu" in row]
    return summaries.known(
        dram_bytes_error=summaries.most(
            _error(row, metric)
            for row in counted
            for metric in (READ, WRITTEN)
            if row["ncu"][metric] > SMALLEST_BYTES
        ),
        cycles_error=summaries.most(_error(row, CYCLES) for row in counted),
        time_after_over_before=summaries.most(
            row["after"] / row["before"] for row in rows if "after" in row
        ),
    )


def _error(row: results.Row, metric: str) -> float:
    return float(abs(row["convtime"][metric] / row["ncu"][metric] - 1))


def table(rows: list[results.Row]) -> str:
    return summaries.filled(
        "operation | MB read: | ncu: | MB written: | ncu: | cycles: | ncu:",
        "{key} | {convtime[dram__bytes_read.sum]:,.2fM} | {ncu[dram__bytes_read.sum]:,.2fM} "
        "| {convtime[dram__bytes_write.sum]:,.2fM} | {ncu[dram__bytes_write.sum]:,.2fM} "
        "| {convtime[sm__cycles_elapsed.max]:,.0f} | {ncu[sm__cycles_elapsed.max]:,.0f}",
        (row for row in rows if "ncu" in row),
    )


if __name__ == "__main__":
    running.run("counters", make_cases)
