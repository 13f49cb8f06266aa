"""An examination of a machine, which is turned into findings with advice.

The thresholds are at the top. docs/reference/doctor.md explains each threshold.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from convtime.core import codec
from convtime.core.checks import check_one_of
from convtime.device.state import CpuState, GpuState, KernelCache
from convtime.timing.measurement import Ceilings
from convtime.view.shown import Shown
from convtime.view.wording import format_seconds

AS_IS: Final = "as-is"

Status = Literal["ok", "advice", "failed"]

#: Largest acceptable error of a known difference, in seconds. Method ``kernel`` resolves each
#: median to about two ticks of an H200's clock. One graph of spins had an error of 0.6 µs, and the
#: next one 0.1 µs.
DURATION_LIMITS = {"kernel": 128e-9, "event": 250e-9, "graph": 1e-6, "sync": 5e-6, "cpu": 4e-6}
#: Interquartile range, as a share of the median, above which a finding gives advice, and above
#: which the median is meaningless.
SPREAD_LIMITS = (0.05, 0.5)
#: Load average per CPU, and GPU utilization before any timing, above which a finding reports other
#: work on the machine.
LOAD_LIMIT = 0.5
UTILIZATION_LIMIT = 0.05

# The clocks fall normally under load (sw_power_cap) and at rest. The hardware reasons indicate a
# cooling or power problem. hw_slowdown accompanies them, but also occurs when clocks merely change.
HARDWARE_REASONS = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
_NORMAL_REASONS = ("gpu_idle", "applications_clocks_setting")
_NO_NVML = "ask the administrator to make libnvidia-ml visible here, to read clocks and processes"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        check: name of the check.
        status: ``ok``; ``advice`` (times are correct, but could be steadier or mean something
            other than expected); or ``failed`` (do not trust times from this machine in its
            current state).
        message: the observation.
        advice: suggested action; empty if none is needed.
    """

    check: str
    status: Status
    message: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class KnownDuration:
    """Two interleaved spins of known durations, timed by one method; their common cost cancels.

    Attributes:
        method: timing method.
        expected: difference between the two known durations, in seconds.
        measured: median difference over the rounds; None if the method is unavailable.
        spread: interquartile range of the longer spin divided by its median.
        interval: 95 % interval of ``measured``; None if unavailable.
        reason: why the method is unavailable; empty otherwise.
    """

    method: str
    expected: float
    measured: float | None
    spread: float | None
    interval: tuple[float, float] | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        check_one_of("method", self.method, DURATION_LIMITS)

    @property
    def error(self) -> float | None:
        """Error of the measured difference, in seconds."""
        return None if self.measured is None else self.measured - self.expected

    @property
    def least_error(self) -> float | None:
        """Smallest absolute error within the interval, in seconds."""
        if self.error is None or self.interval is None:
            return None if self.error is None else abs(self.error)
        low, high = (end - self.expected for end in self.interval)
        return max(low, -high, 0.0)


@dataclasses.dataclass(frozen=True)
class OperationTiming:
    """One operation, timed by one method in one regime.

    Attributes:
        name: the operation.
        method: timing method.
        regime: requested regime; ``as-is`` requests none.
        median: median time in seconds; None if the method or the regime was unavailable.
        spread: interquartile range divided by the median.
        interval: 95 % interval of the median, in seconds.
        reason: why the method or the regime was unavailable; empty otherwise.
    """

    name: str
    method: str
    regime: str
    median: float | None
    spread: float | None
    interval: tuple[float, float] | None
    reason: str = ""


class Judged(codec.Stored, abc.ABC):
    """A result with findings, of which its JSON tells."""

    @property
    @abc.abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """The result of each check."""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(finding.status != "failed" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with findings, and whether all checks passed."""
        findings = [codec.encode(finding) for finding in self.findings]
        return super().to_dict() | {"passed": self.passed, "findings": findings}


@dataclasses.dataclass(frozen=True, repr=False)
class Examination(Judged, Shown, show="convtime.health.show"):
    """Result of examining a machine; see :func:`convtime.doctor`.

    Attributes:
        cpu: state of the processors.
        gpu: state of the GPU; None on a CPU, or if NVML is unavailable.
        gpu_reason: why the GPU's state is missing; empty on a CPU or if it is present.
        known_durations: one entry per method.
        operations: each operation by each method, then in each regime.
        ceilings: rates that the device reaches.
        kernel_cache: state of the kernels' compiler and cache; None on a CPU.
        seconds: duration of the whole examination.
        provenance: hardware, software and source state (see convtime.device.provenance).
    """

    cpu: CpuState
    gpu: GpuState | None
    gpu_reason: str
    known_durations: tuple[KnownDuration, ...]
    operations: tuple[OperationTiming, ...]
    ceilings: Ceilings
    seconds: float
    provenance: Mapping[str, Any]
    kernel_cache: KernelCache | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        unavailable = Finding("NVML", "advice", self.gpu_reason, _NO_NVML)
        return (
            *map(_judge_duration, self.known_durations),
            *_judge_spread(self.operations),
            *_judge_regimes(self.operations),
            *([] if self.gpu is None else _judge_gpu(self.gpu)),
            *([unavailable] if self.gpu_reason else []),
            *([] if self.kernel_cache is None else _judge_kernel_cache(self.kernel_cache)),
            *_judge_cpu(self.cpu),
        )


def _judge_duration(known: KnownDuration) -> Finding:
    check = f"method {known.method}"
    if known.error is None:
        return Finding(
            check,
            "advice",
            f"cannot be used: {known.reason}",
            "use another method, e.g. method='auto', which reports its choice",
        )
    limit = DURATION_LIMITS[known.method]
    message = (
        f"a difference of {format_seconds(known.expected)} was timed "
        f"{format_seconds(abs(known.error))} too {'long' if known.error > 0 else 'short'} (up to "
        f"{format_seconds(limit)} is good)"
    )
    if abs(known.error) <= limit:
        return Finding(check, "ok", message)
    # Random sampling error alone must not fail a machine.
    least = known.least_error
    return Finding(
        check,
        "failed" if least is not None and least > limit else "advice",
        message,
        "stop other work on this machine, and run the check again",
    )


def _judge_spread(operations: Sequence[OperationTiming]) -> Iterator[Finding]:
    # Use the first available method, which is also the choice of method="auto". Methods sync and
    # cpu include launches on a GPU, which are only as steady as the system's scheduler.
    spreads: dict[str, tuple[float, str]] = {}
    for timing in operations:
        if timing.spread is not None:
            spreads.setdefault(timing.name, (timing.spread, timing.method))
    worth_a_word, meaningless = SPREAD_LIMITS
    wide = {name: spread for name, spread in spreads.items() if spread[0] > worth_a_word}
    for name, (spread, method) in wide.items():
        yield Finding(
            "spread",
            "failed" if spread > meaningless else "advice",
            f"the interquartile range of {name} is {spread:.1%} of its median (method {method})",
            "compare with convtime.compare, which interleaves its candidates",
        )
    if spreads and not wide:
        message = f"all interquartile ranges are at most {worth_a_word:.0%} of their median"
        yield Finding("spread", "ok", message)


def _judge_regimes(operations: Sequence[OperationTiming]) -> Iterator[Finding]:
    regimes = {timing.regime: timing for timing in operations if timing.regime != AS_IS}
    for timing in regimes.values():
        if timing.median is None:
            yield Finding(
                f"regime {timing.regime}",
                "advice",
                f"was not reached: {timing.reason}",
                "read the result's sm_clocks_hz before comparing it with others",
            )
    if len(regimes) < 2:
        return
    burst, sustained = regimes["burst"], regimes["sustained"]
    if burst.interval is None or sustained.interval is None:
        return
    yield either(
        "regimes",
        "advice" if burst.interval[1] < sustained.interval[0] else "ok",
        f"{burst.name} takes {format_seconds(burst.median or 0)} in burst and "
        f"{format_seconds(sustained.median or 0)} sustained",
        "choose one with regime='burst' or regime='sustained'",
        f"{burst.name} takes the same time in burst and sustained",
    )


def _judge_gpu(gpu: GpuState) -> Iterator[Finding]:
    if gpu.left_over:
        yield Finding("locked clocks", "failed", gpu.left_over, "reset the clocks as described")
    if gpu.other_processes is not None:
        yield either(
            "other processes",
            "failed" if gpu.other_processes else "ok",
            f"{gpu.other_processes} other processes run on this GPU",
            "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES",
            "no other process is known to run on this GPU",
        )
    if gpu.utilization is not None and gpu.utilization > UTILIZATION_LIMIT:
        yield Finding(
            "utilization",
            "advice",
            f"the GPU was busy for {gpu.utilization:.0%} of the second before the check",
            "use nvidia-smi to find its other users, also outside this container",
        )
    yield _judge_throttling(gpu.throttle_reasons)
    if gpu.uncorrected_errors or gpu.ecc is not None:
        yield either(
            "ECC",
            "failed" if gpu.uncorrected_errors else "ok",
            f"the GPU's memory had {gpu.uncorrected_errors} uncorrected errors",
            "have the GPU reset or replaced",
            f"is {'on' if gpu.ecc else 'off'}",
        )
    if gpu.mig:
        yield Finding(
            "MIG",
            "advice",
            "the GPU is divided into instances, which share clocks and power",
            "keep the other instances idle while you time",
        )
    if gpu.persistence_mode is not None:
        yield either(
            "persistence mode",
            "ok" if gpu.persistence_mode else "advice",
            "is off: the driver loses its settings when the last process exits",
            f"run `sudo nvidia-smi -i {gpu.uuid} -pm 1`",
            "is on",
        )
    yield either(
        "locking clocks",
        "ok" if gpu.may_lock_clocks else "advice",
        "this process lacks permission (CAP_SYS_ADMIN, outside a user namespace)",
        f"use regime=, or run `sudo nvidia-smi -i {gpu.uuid} -lgc tdp,tdp` before timing and "
        f"`sudo nvidia-smi -i {gpu.uuid} -rgc` afterwards",
        "this process has permission",
    )
    if gpu.may_read_counters is not None:
        yield either(
            "hardware counters",
            "ok" if gpu.may_read_counters else "advice",
            "only the administrator can read them (RmProfilingAdminOnly)",
            "load the driver with the option NVreg_RestrictProfilingToAdminUsers=0",
            "are readable",
        )


def either(check: str, status: Status, message: str, advice: str, if_ok: str) -> Finding:
    """Return a finding with the message and the advice, or with another message if it is ok."""
    return Finding(check, status, *((if_ok,) if status == "ok" else (message, advice)))


def _judge_throttling(reasons: Sequence[str]) -> Finding:
    lowering = [reason for reason in reasons if reason not in _NORMAL_REASONS]
    if not lowering:
        return Finding("throttling", "ok", "nothing lowered the clocks")
    message = f"the clocks were lowered by {', '.join(lowering)}"
    if any(reason in HARDWARE_REASONS for reason in lowering):
        return Finding(
            "throttling", "failed", message, "have the GPU's cooling and power supply checked"
        )
    return Finding(
        "throttling", "advice", message, "choose a state with regime=, or lock the clocks"
    )


def _judge_kernel_cache(cache: KernelCache) -> Iterator[Finding]:
    yield either(
        "kernel compiler",
        "failed" if cache.compiler_reason else "ok",
        cache.compiler_reason,
        "reinstall torch with its nvidia packages",
        f"is {cache.compiler}",
    )
    yield either(
        "kernel cache",
        "advice" if cache.problem else "ok",
        f"{cache.problem}, so each process compiles its kernels again",
        "set XDG_CACHE_HOME to a folder that is writable",
        f"{cache.folder} has {cache.files} programs, {cache.nbytes / 1e6:.1f} MB",
    )


def _judge_cpu(cpu: CpuState) -> Iterator[Finding]:
    others = [governor for governor in cpu.governors if governor != "performance"]
    if cpu.governors:
        yield either(
            "CPU governor",
            "advice" if others else "ok",
            f"is {', '.join(others)}: the clock follows the load",
            "run `sudo cpupower frequency-set -g performance`",
            "is performance",
        )
    if cpu.boost is not None:
        off = 1 if (cpu.boost_switch or "").endswith("no_turbo") else 0
        yield either(
            "CPU boost",
            "advice" if cpu.boost else "ok",
            "is on: the clock depends on the number of busy cores and on their temperature",
            f"run `echo {off} | sudo tee {cpu.boost_switch}` to time work on the CPU",
            "is off",
        )
    if cpu.smt:
        yield Finding(
            "CPU threads per core",
            "advice",
            "each core runs several threads, which share its resources",
            "pin the timed work to one thread per core, e.g. with taskset",
        )
    load = f"is {cpu.load:.1f} on {cpu.cpus} CPUs"
    yield either(
        "CPU load",
        "advice" if cpu.load / cpu.cpus > LOAD_LIMIT else "ok",
        load,
        "wait until other work has finished",
        load,
    )
    threads = f"PyTorch uses {cpu.threads} threads on {cpu.usable_cpus} usable CPUs"
    yield either(
        "CPU threads",
        "advice" if cpu.threads > cpu.usable_cpus else "ok",
        threads,
        f"call torch.set_num_threads({cpu.usable_cpus})",
        threads,
    )
