"""Whether timings can be trusted on this machine: what was seen, what it means, and what to do.

:func:`examine` looks and times; :func:`find` judges what was seen, and is pure. The thresholds are
at the top, and what each of them decides is in docs/clocks.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from tabulate import tabulate
from torch.nn import functional as F

from convtime import machine, nvml
from convtime.ceilings import Ceilings
from convtime.clocks import ClockMonitor
from convtime.machine import CpuState, GpuState
from convtime.measurement import format_seconds
from convtime.provenance import provenance
from convtime.timing import ceilings, time_op

SCHEMA = 1

#: How far off a known difference may be timed, in seconds. Each of kernel's medians is known to
#: about two ticks of an H200's clock; one graph of spins was seen 0.6 µs off, and the next 0.1 µs.
DURATION_LIMITS = {"kernel": 128e-9, "event": 250e-9, "graph": 1e-6, "sync": 5e-6, "cpu": 4e-6}
#: How large a share of the median the quartiles may be apart: before it is worth a word, and before
#: the median means nothing.
SPREAD_LIMITS = (0.05, 0.5)
#: The load average per CPU, and the GPU's utilisation before anything was timed, from which on
#: others are said to be at work.
LOAD_LIMIT = 0.5
UTILISATION_LIMIT = 0.05

# The clocks fall by themselves under load (sw_power_cap) and at rest; these mean that something is
# wrong with cooling or power. hw_slowdown comes with them, but also while the clocks just change.
_HARDWARE_REASONS = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
_NORMAL_REASONS = ("gpu_idle", "applications_clocks_setting")

AS_IS = "as-is"

_BUDGET = 0.1  # seconds for each of some thirty timings, or it would take more than 20 s
_GPU_METHODS = ("kernel", "event", "graph", "sync", "cpu")
_REGIMES = ("burst", "sustained")

Status = Literal["ok", "advice", "failed"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        check: what was looked at.
        status: ``ok``; ``advice`` (times are true, but could be steadier, or mean something else
            than you think); or ``failed`` (do not trust times of this machine as it is).
        message: what was seen.
        advice: what to do about it; empty where there is nothing to do.
    """

    check: str
    status: Status
    message: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class KnownDuration:
    """Two spins of known durations, timed by one method; what they have in common cancels.

    Attributes:
        method: the method.
        expected: the difference of their durations, in seconds.
        measured: the difference of their medians; None where the method could not be used.
        spread: the longer one's quartiles' distance over its median.
        reason: why the method could not be used; empty where it could.
    """

    method: str
    expected: float
    measured: float | None
    spread: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """How far off the difference is, in seconds."""
        return None if self.measured is None else self.measured - self.expected


@dataclasses.dataclass(frozen=True)
class OperationTiming:
    """One operation, timed by one method, in one regime.

    Attributes:
        name: the operation.
        method: the method.
        regime: the regime asked for; ``as-is`` is none in particular.
        median: in seconds; None where the method or the regime was not to be had.
        spread: the quartiles' distance over the median.
        interval: the median's 95 % interval, in seconds.
        reason: why it was not to be had; empty where it was.
    """

    name: str
    method: str
    regime: str
    median: float | None
    spread: float | None
    interval: tuple[float, float] | None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Examination:
    """All that was seen on a machine.

    Attributes:
        cpu: its processors' state.
        gpu: its GPU's state; None on a CPU, and where NVML cannot be used.
        gpu_reason: why there is none; empty on a CPU, and where there is one.
        known_durations: one of each method.
        operations: each operation by each method, then in each regime.
        ceilings: the rates that the device reaches.
        seconds: what all of it took.
        provenance: hardware, software and source state (see convtime.provenance).
    """

    cpu: CpuState
    gpu: GpuState | None
    gpu_reason: str
    known_durations: tuple[KnownDuration, ...]
    operations: tuple[OperationTiming, ...]
    ceilings: Ceilings
    seconds: float
    provenance: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(finding.status != "failed" for finding in find(self))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with a schema version, the findings and whether they passed."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "findings": [dataclasses.asdict(finding) for finding in find(self)],
            **dataclasses.asdict(self),
        }

    def __str__(self) -> str:
        device = self.provenance["gpu"] or self.provenance["cpu"]
        found = find(self)
        failed = sum(finding.status == "failed" for finding in found)
        advised = sum(finding.status == "advice" for finding in found)
        return "\n\n".join(
            [
                f"{device}; torch {self.provenance['torch']}",
                _durations_table(self.known_durations),
                _operations_table(self.operations),
                f"ceilings: copy {self.ceilings.bytes_per_second / 1e9:,.0f} GB/s, "
                f"{self.ceilings.matmul_dtype} matmul "
                f"{self.ceilings.flops_per_second / 1e12:,.3g} TFLOP/s",
                "\n".join(map(_line, found)),
                f"{len(found)} checks in {self.seconds:.1f} s: {failed} failed, {advised} with "
                "advice",
            ]
        )


def examine(device: torch.device) -> Examination:
    """Looks at the machine, and times kernels of known duration and a few operations.

    It takes up to 20 s on a GPU, and changes nothing.

    Args:
        device: a GPU or the CPU.
    """
    began = time.perf_counter()
    cpu = machine.cpu_state()  # before our own work is part of the load
    on_gpu = device.type == "cuda"
    utilisation = machine.utilisation(device) if on_gpu else None
    monitor = ClockMonitor(device, interval=0.1) if on_gpu else None
    with monitor or contextlib.nullcontext():
        known_durations = tuple(_known_durations(device))
        operations = tuple(_operations(device))
        reached = ceilings(device)
    gpu, gpu_reason = None, ""
    if monitor is not None:
        try:
            gpu = machine.gpu_state(device, utilisation, monitor.readings)
        except nvml.NvmlUnavailableError as error:
            gpu_reason = str(error)
    return Examination(
        cpu=cpu,
        gpu=gpu,
        gpu_reason=gpu_reason,
        known_durations=known_durations,
        operations=operations,
        ceilings=reached,
        seconds=time.perf_counter() - began,
        provenance=provenance(device),
    )


def _known_durations(device: torch.device) -> Iterator[KnownDuration]:
    for method in _GPU_METHODS if device.type == "cuda" else ("cpu",):
        if method == "cpu":
            spin, durations, where = _spin_host, (100_000, 500_000), torch.device("cpu")
        else:
            spin, durations, where = torch.ops.convtime.spin_ns, (20_000, 100_000), device
        expected = (durations[1] - durations[0]) * 1e-9
        try:
            short, long = (
                time_op(
                    spin, nanoseconds, method=method, cache="warm", device=where, budget=_BUDGET
                )
                for nanoseconds in durations
            )
        except RuntimeError as error:
            yield KnownDuration(method, expected, None, None, _one_line(error))
        else:
            measured = long.median - short.median
            yield KnownDuration(method, expected, measured, long.iqr / long.median)


def _spin_host(nanoseconds: int) -> None:
    # Neither the clock that host methods read, nor one that is adjusted.
    clock = time.CLOCK_MONOTONIC_RAW
    end = time.clock_gettime_ns(clock) + nanoseconds
    while time.clock_gettime_ns(clock) < end:
        pass


def _operations(device: torch.device) -> Iterator[OperationTiming]:
    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    on_gpu = device.type == "cuda"
    small = random(4096)
    large = random((64 if on_gpu else 1) << 20)
    size, dtype = (4096, torch.bfloat16) if on_gpu else (512, torch.float32)
    matrix = random(size, size, dtype=dtype)
    image_dtype, batch = (torch.float16, 32) if on_gpu else (torch.float32, 1)
    image = random(batch, 64, 56, 56, dtype=image_dtype).to(memory_format=torch.channels_last)
    weight = random(64, 64, 3, 3, dtype=image_dtype).to(memory_format=torch.channels_last)
    matmul = f"{_name(matrix)} matmul"
    operations: dict[str, Callable[[], object]] = {
        f"{_name(small)} relu": lambda: torch.relu(small),
        f"{_name(large)} relu": lambda: torch.relu(large),
        matmul: lambda: torch.mm(matrix, matrix),
        f"{_name(image)} conv 3×3": lambda: F.conv2d(image, weight, padding=1),
    }
    for name, fn in operations.items():
        for method in _GPU_METHODS if on_gpu else ("cpu",):
            yield _timed(name, fn, device, method)
    if on_gpu:
        for regime in _REGIMES:
            yield _timed(matmul, operations[matmul], device, "auto", regime)


def _name(tensor: torch.Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _timed(
    name: str,
    fn: Callable[[], object],
    device: torch.device,
    method: str,
    regime: str = AS_IS,
) -> OperationTiming:
    try:
        measured = time_op(fn, method=method, device=device, budget=_BUDGET, regime=regime)
    except RuntimeError as error:
        return OperationTiming(name, method, regime, None, None, None, _one_line(error))
    if measured.regime != regime:
        return OperationTiming(name, method, regime, None, None, None, measured.regime_reason)
    spread = measured.iqr / measured.median
    interval = measured.median_interval
    return OperationTiming(name, measured.method, regime, measured.median, spread, interval)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def find(seen: Examination) -> list[Finding]:
    """Judges what was seen on a machine."""
    return [
        *map(_judge_duration, seen.known_durations),
        *_judge_spread(seen.operations),
        *_judge_regimes(seen.operations),
        *([] if seen.gpu is None else _judge_gpu(seen.gpu)),
        *([_no_nvml(seen.gpu_reason)] if seen.gpu_reason else []),
        *_judge_cpu(seen.cpu),
    ]


def _judge_duration(known: KnownDuration) -> Finding:
    check = f"method {known.method}"
    if known.error is None:
        return Finding(
            check,
            "advice",
            f"cannot be used: {known.reason}",
            "use another method, e.g. method='auto', which says which one it used",
        )
    limit = DURATION_LIMITS[known.method]
    message = (
        f"a difference of {format_seconds(known.expected)} was timed "
        f"{format_seconds(abs(known.error))} too {'long' if known.error > 0 else 'short'} (up to "
        f"{format_seconds(limit)} is good)"
    )
    if abs(known.error) <= limit:
        return Finding(check, "ok", message)
    return Finding(
        check, "failed", message, "end whatever else runs on this machine, and look again"
    )


def _judge_spread(operations: Sequence[OperationTiming]) -> Iterator[Finding]:
    # By the first method that could be used, which is the one that method="auto" uses: launching,
    # which sync and cpu time on a GPU, is no steadier than the system's scheduler.
    timed: dict[str, OperationTiming] = {}
    for one in operations:
        if one.spread is not None:
            timed.setdefault(one.name, one)
    worth_a_word, meaningless = SPREAD_LIMITS
    wide = {name: one for name, one in timed.items() if (one.spread or 0) > worth_a_word}
    for name, one in wide.items():
        yield Finding(
            "spread",
            "failed" if (one.spread or 0) > meaningless else "advice",
            f"the quartiles of {name} are {one.spread:.1%} of its median apart by method "
            f"{one.method}",
            "compare with convtime.compare, which interleaves what it compares",
        )
    if timed and not wide:
        message = f"all quartiles are at most {worth_a_word:.0%} of their median apart"
        yield Finding("spread", "ok", message)


def _judge_regimes(operations: Sequence[OperationTiming]) -> Iterator[Finding]:
    regimes = {one.regime: one for one in operations if one.regime != AS_IS}
    for one in regimes.values():
        if one.median is None:
            yield Finding(
                f"regime {one.regime}",
                "advice",
                f"was not reached: {one.reason}",
                "read the result's sm_clocks before comparing it with others",
            )
    if len(regimes) < 2:
        return
    burst, sustained = regimes["burst"], regimes["sustained"]
    if burst.interval is None or sustained.interval is None:
        return
    if burst.interval[1] < sustained.interval[0]:
        yield Finding(
            "regimes",
            "advice",
            f"{burst.name} takes {format_seconds(burst.median or 0)} in burst and "
            f"{format_seconds(sustained.median or 0)} sustained",
            "say which of the two you mean with regime='burst' or regime='sustained'",
        )
    else:
        yield Finding("regimes", "ok", f"{burst.name} takes as long in burst as sustained")


def _no_nvml(reason: str) -> Finding:
    return Finding(
        "NVML",
        "advice",
        reason,
        "have the administrator make libnvidia-ml visible here, to see clocks and other processes",
    )


def _judge_gpu(gpu: GpuState) -> Iterator[Finding]:
    if gpu.left_over:
        yield Finding("locked clocks", "failed", gpu.left_over, "reset the clocks as said")
    if gpu.other_processes:
        yield Finding(
            "other processes",
            "failed",
            f"{gpu.other_processes} other processes compute on this GPU",
            "end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
        )
    elif gpu.other_processes is not None:
        yield Finding("other processes", "ok", "no other process is known to compute on this GPU")
    if gpu.utilisation is not None and gpu.utilisation > UTILISATION_LIMIT:
        yield Finding(
            "utilisation",
            "advice",
            f"the GPU was busy for {gpu.utilisation:.0%} of the second before",
            "find out with nvidia-smi who else uses it, also outside of this container",
        )
    yield _judge_throttling(gpu.throttle_reasons)
    if gpu.uncorrected_errors:
        yield Finding(
            "ECC",
            "failed",
            f"the GPU's memory had {gpu.uncorrected_errors} uncorrected errors",
            "have the GPU reset or replaced",
        )
    elif gpu.ecc is not None:
        yield Finding("ECC", "ok", f"is {'on' if gpu.ecc else 'off'}")
    if gpu.mig:
        yield Finding(
            "MIG",
            "advice",
            "the GPU is divided into instances, which share clocks and power",
            "keep the other instances idle while you time",
        )
    if gpu.persistence_mode is False:
        yield Finding(
            "persistence mode",
            "advice",
            "is off: the driver forgets its settings when the last process ends",
            f"run `sudo nvidia-smi -i {gpu.uuid} -pm 1`",
        )
    elif gpu.persistence_mode:
        yield Finding("persistence mode", "ok", "is on")
    if gpu.may_lock_clocks:
        yield Finding("locking clocks", "ok", "this process has the rights to")
    else:
        yield Finding(
            "locking clocks",
            "advice",
            "this process lacks the right to (CAP_SYS_ADMIN, outside of a user namespace)",
            f"use regime=, or run `sudo nvidia-smi -i {gpu.uuid} -lgc tdp,tdp` before, and "
            f"`sudo nvidia-smi -i {gpu.uuid} -rgc` after",
        )
    if gpu.may_read_counters is False:
        yield Finding(
            "hardware counters",
            "advice",
            "only the administrator may read them (RmProfilingAdminOnly)",
            "load the driver with the option NVreg_RestrictProfilingToAdminUsers=0",
        )
    elif gpu.may_read_counters:
        yield Finding("hardware counters", "ok", "may be read")


def _judge_throttling(reasons: Sequence[str]) -> Finding:
    lowering = [one for one in reasons if one not in _NORMAL_REASONS]
    if not lowering:
        return Finding("throttling", "ok", "nothing lowered the clocks")
    message = f"the clocks were lowered by {', '.join(lowering)}"
    if any(one in _HARDWARE_REASONS for one in lowering):
        return Finding(
            "throttling", "failed", message, "have the GPU's cooling and power supply checked"
        )
    return Finding(
        "throttling", "advice", message, "say which state you mean with regime=, or lock the clocks"
    )


def _judge_cpu(cpu: CpuState) -> Iterator[Finding]:
    others = [one for one in cpu.governors if one != "performance"]
    if others:
        yield Finding(
            "CPU governor",
            "advice",
            f"is {', '.join(others)}, under which the clock follows the load",
            "run `sudo cpupower frequency-set -g performance`",
        )
    elif cpu.governors:
        yield Finding("CPU governor", "ok", "is performance")
    if cpu.boost:
        off = 1 if (cpu.boost_switch or "").endswith("no_turbo") else 0
        yield Finding(
            "CPU boost",
            "advice",
            "is on: the clock depends on how many cores are busy, and how hot they are",
            f"run `echo {off} | sudo tee {cpu.boost_switch}` to time work on the CPU",
        )
    elif cpu.boost is not None:
        yield Finding("CPU boost", "ok", "is off")
    if cpu.smt:
        yield Finding(
            "CPU threads per core",
            "advice",
            "cores run several threads, which share what a core has",
            "pin what is timed to one thread a core, e.g. with taskset",
        )
    load = cpu.load / cpu.cpus
    if load > LOAD_LIMIT:
        yield Finding(
            "CPU load",
            "advice",
            f"is {cpu.load:.1f} on {cpu.cpus} CPUs",
            "wait until other work is done",
        )
    else:
        yield Finding("CPU load", "ok", f"is {cpu.load:.1f} on {cpu.cpus} CPUs")
    if cpu.threads > cpu.usable_cpus:
        yield Finding(
            "CPU threads",
            "advice",
            f"PyTorch uses {cpu.threads} threads on {cpu.usable_cpus} usable CPUs",
            f"call torch.set_num_threads({cpu.usable_cpus})",
        )
    else:
        yield Finding(
            "CPU threads",
            "ok",
            f"PyTorch uses {cpu.threads} threads on {cpu.usable_cpus} usable CPUs",
        )


def _durations_table(durations: Sequence[KnownDuration]) -> str:
    rows = [
        (
            one.method,
            format_seconds(one.expected),
            "—" if one.measured is None else format_seconds(one.measured),
            "—" if one.error is None else f"{one.error * 1e9:+,.0f} ns",
            "—" if one.spread is None else f"{one.spread:.2%}",
        )
        for one in durations
    ]
    headers = ("method", "difference of two spins", "as timed", "error", "IQR of the longer")
    return _table(rows, headers)


def _operations_table(operations: Sequence[OperationTiming]) -> str:
    def column(one: OperationTiming) -> str:
        return one.method if one.regime == AS_IS else one.regime

    columns = list(dict.fromkeys(map(column, operations)))
    cells: dict[str, dict[str, str]] = {}
    for one in operations:
        text = "—"
        if one.median is not None and one.spread is not None:
            text = f"{format_seconds(one.median)} ± {one.spread:.1%}"
        cells.setdefault(one.name, {})[column(one)] = text
    rows = [(name, *(row.get(one, "") for one in columns)) for name, row in cells.items()]
    return _table(rows, ("median ± IQR", *columns))


def _table(rows: Sequence[tuple[str, ...]], headers: tuple[str, ...]) -> str:
    align = ("left", *("right" for _ in headers[1:]))
    return tabulate(rows, headers, tablefmt="simple", colalign=align, disable_numparse=True)


def _line(finding: Finding) -> str:
    advice = f": {finding.advice}" if finding.advice else ""
    return f"{finding.status:>6}  {finding.check}: {finding.message}{advice}"
