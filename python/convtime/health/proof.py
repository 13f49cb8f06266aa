"""Check convtime's promises on a GPU: known durations, ticks, overlap, equal pairs, regimes."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import torch

from convtime.core.errors import one_line
from convtime.core.load import _C, _build_info
from convtime.device.proof import Promise, Proof
from convtime.device.provenance import driver_version, gpu_uuid
from convtime.timing.candidate import Candidate
from convtime.timing.compare import compare
from convtime.timing.options import Method, Options, Regime
from convtime.timing.sampling.measure import measure
from convtime.timing.time_op import time_op
from convtime.timing.verdict import Ratio
from convtime.view.wording import format_seconds

#: By method: allowed error of a known difference, relative and in seconds. The larger limit applies
#: (docs/explanation/methods.md), plus one tick of the clock.
DURATION_LIMITS: dict[Method, tuple[float, float]] = {
    "kernel": (0.01, 64e-9),
    "event": (0.02, 250e-9),
    "graph": (0.03, 500e-9),
}
#: Allowed share of false verdicts on equal pairs, and required share of intervals with the truth.
FALSE_VERDICTS, COVERAGE = 0.05, 0.9
#: A promise is broken if chance alone would give the result with a lower probability than this.
CHANCE = 0.01
RATIO_ERROR = 0.02
#: Allowed relative difference of two runs in one regime.
REGIME_DIFFERENCE = 0.02

_REGIMES: tuple[Regime, ...] = ("burst", "sustained")
_SECONDS_OF_SPINS = (1e-6, 5e-6, 20e-6, 100e-6)
_SPIN_PAIRS = 6
_EQUAL_PAIRS = 8  # of each operation
_SEED = 0

_Call = Callable[[], object]
_Way = Callable[[_Call, _Call], None]


@dataclasses.dataclass(frozen=True)
class KnownDifference:
    """Difference of two spins that were timed interleaved; all times in seconds."""

    method: Method
    expected: float
    measured: float
    interval: tuple[float, float]
    tick: float


@dataclasses.dataclass(frozen=True)
class KnownRatio:
    """Two callables with a known ratio of their times."""

    what: str
    expected: float
    verdict: str
    ratio: Ratio


@dataclasses.dataclass(frozen=True)
class ProofRecord:
    """Measurements that the promises are checked with.

    Attributes:
        differences: differences of spins of known durations.
        ticks: step of each clock in seconds; None if unknown.
        ratios: ratios of overlapping work.
        pairs: ratios of operations to themselves on other tensors, which are 1.
        regimes: by regime, the medians of two runs in seconds, or why it was not reached.
        failures: by part of the above, why its measurement failed.
    """

    differences: tuple[KnownDifference, ...] = ()
    ticks: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    ratios: tuple[KnownRatio, ...] = ()
    pairs: tuple[KnownRatio, ...] = ()
    regimes: Mapping[str, tuple[float, float] | str] = dataclasses.field(default_factory=dict)
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)


def promises(record: ProofRecord) -> tuple[Promise, ...]:
    """Judge the measurements; needs no device."""
    return (
        *_durations(record),
        _intervals(record),
        _ticks(record),
        _overlap(record),
        _equal_pairs(record),
        *_regimes(record),
    )


def _unchecked(name: str, record: ProofRecord, part: str) -> Promise:
    return Promise(name, None, record.failures.get(part, "it was not measured"))


def _durations(record: ProofRecord) -> Iterator[Promise]:
    for method, (share, least) in DURATION_LIMITS.items():
        name = f"known durations by {method}"
        differences = [each for each in record.differences if each.method == method]
        if not differences:
            yield _unchecked(name, record, method)
            continue
        # Errors are in units of the limit: at most 1 is allowed.
        errors = [
            abs(each.measured - each.expected) / (max(share * each.expected, least) + each.tick)
            for each in differences
        ]
        worst = differences[errors.index(max(errors))]
        yield Promise(
            name,
            max(errors) <= 1,
            f"{len(differences)} differences; largest error: "
            f"{format_seconds(abs(worst.measured - worst.expected))} of "
            f"{format_seconds(worst.expected)} (allowed: {share:.0%} or {format_seconds(least)}, "
            f"plus a tick of {format_seconds(worst.tick)})",
        )


def _intervals(record: ProofRecord) -> Promise:
    """Check the intervals of method ``kernel``, which has no method overhead."""
    name = "intervals hold known durations"
    differences = [each for each in record.differences if each.method == "kernel"]
    if not differences:
        return _unchecked(name, record, "kernel")
    # The known duration has an uncertainty of half a tick.
    held = sum(
        each.interval[0] - each.tick / 2 <= each.expected <= each.interval[1] + each.tick / 2
        for each in differences
    )
    return Promise(
        name,
        not is_too_few(held, len(differences), COVERAGE),
        f"{held} of {len(differences)} 95 % intervals contain the truth (promised: {COVERAGE:.0%})",
    )


def _ticks(record: ProofRecord) -> Promise:
    if not record.ticks:
        return _unchecked("ticks are known", record, "ticks")
    steps = ", ".join(
        f"{clock} {'unknown' if tick is None else format_seconds(tick)}"
        for clock, tick in record.ticks.items()
    )
    return Promise("ticks are known", None not in record.ticks.values(), steps)


def _overlap(record: ProofRecord) -> Promise:
    name = "overlapping work is judged by the time it takes"
    if not record.ratios:
        return _unchecked(name, record, "overlap")
    wrong = []
    for each in record.ratios:
        verdict = "same" if each.expected == 1 else "faster"
        ratio = each.ratio.value
        if each.verdict != verdict or abs(ratio / each.expected - 1) > RATIO_ERROR:
            wrong.append(f"{each.what}: {each.verdict}, {ratio:.4f} for {each.expected:.4f}")
    return Promise(
        name,
        not wrong,
        "; ".join(wrong) or f"{len(record.ratios)} ratios are correct within {RATIO_ERROR:.0%}",
    )


def _equal_pairs(record: ProofRecord) -> Promise:
    name = "equal operations are not told apart"
    if not record.pairs:
        return _unchecked(name, record, "pairs")
    count = len(record.pairs)
    false = sum(each.verdict in ("faster", "slower") for each in record.pairs)
    held = sum(each.ratio.low <= 1 <= each.ratio.high for each in record.pairs)
    return Promise(
        name,
        not is_too_few(count - false, count, 1 - FALSE_VERDICTS)
        and not is_too_few(held, count, COVERAGE),
        f"{false} false verdicts in {count} pairs (promised: {FALSE_VERDICTS:.0%} at most), and "
        f"{held} intervals contain 1 (promised: {COVERAGE:.0%})",
    )


def _regimes(record: ProofRecord) -> Iterator[Promise]:
    for regime in _REGIMES:
        name = f"regime {regime} repeats"
        medians = record.regimes.get(regime)
        if medians is None:
            yield _unchecked(name, record, regime)
        elif isinstance(medians, str):
            yield Promise(name, None, f"it was not reached: {medians}")
        else:
            first, second = medians
            difference = abs(second / first - 1)
            yield Promise(
                name,
                difference <= REGIME_DIFFERENCE,
                f"{format_seconds(first)} and {format_seconds(second)}, {difference:.2%} apart "
                f"(allowed: {REGIME_DIFFERENCE:.0%})",
            )


def is_too_few(held: int, count: int, share: float) -> bool:
    """Return whether at most ``held`` of ``count`` is less likely than CHANCE at this share."""
    chance = sum(
        math.comb(count, number) * share**number * (1 - share) ** (count - number)
        for number in range(held + 1)
    )
    return chance < CHANCE


def prove(device: torch.device, on_part: Callable[[str], object] = lambda _: None) -> Proof:
    """Check the promises on a GPU; takes about a minute.

    Args:
        device: GPU to check.
        on_part: callback that receives the name of each part before it is checked.
    """
    return Proof(
        gpu=torch.cuda.get_device_name(device),
        gpu_uuid=gpu_uuid(device),
        versions={
            "driver": driver_version(),
            "cuda": torch.version.cuda,
            "torch": str(torch.__version__),
            "convtime": _build_info.version,
        },
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        promises=promises(measure_promises(device, on_part)),
    )


def measure_promises(
    device: torch.device, on_part: Callable[[str], object] = lambda _: None
) -> ProofRecord:
    """Take the measurements that the promises are judged by."""
    failures: dict[str, str] = {}

    def attempt(part: str, measured: Callable[[], Any], otherwise: Any) -> Any:
        on_part(part)
        try:
            result = measured()
            return list(result) if isinstance(result, Iterator) else result
        except RuntimeError as error:  # one failed part must not discard the others
            failures[part] = one_line(error)
            return otherwise

    with torch.cuda.device(device):
        differences: list[KnownDifference] = []
        for method in DURATION_LIMITS:
            differences += attempt(method, functools.partial(_differences, method, device), [])
        return ProofRecord(
            differences=tuple(differences),
            ticks=attempt("ticks", functools.partial(_C.device_ticks, device.index or 0), {}),
            ratios=tuple(attempt("overlap", functools.partial(_ratios, device), ())),
            pairs=tuple(attempt("pairs", functools.partial(_pairs, device), ())),
            regimes={
                regime: medians
                for regime in _REGIMES
                if (medians := attempt(regime, functools.partial(_in_regime, regime, device), None))
            },
            failures=failures,
        )


def _differences(method: Method, device: torch.device) -> Iterator[KnownDifference]:
    chance = random.Random(_SEED)  # noqa: S311
    tick = _C.device_ticks(device.index or 0)["globaltimer"] or 1e-9
    for number in range(_SPIN_PAIRS):
        base = _SECONDS_OF_SPINS[number % len(_SECONDS_OF_SPINS)] * (1 + chance.random())
        # Spins end on ticks of the device's clock: whole ticks are exact.
        ticks = [max(1, round(seconds / tick)) for seconds in (base, base * (2 + chance.random()))]
        nanoseconds = [round(1e9 * tick * count) for count in ticks]
        options = Options(method=method, cache="warm", device=device, budget=0.3)
        spins = [Candidate(torch.ops.convtime.spin_ns, each) for each in nanoseconds]
        short, long = measure(spins, options)
        # Medians account for the tick; the interval of the differences uses their batches.
        seconds = [more - less for less, more in zip(short.seconds, long.seconds, strict=True)]
        low, high, _, _ = _C.median_interval(seconds, (), long.batches, long.clock_tick, 0.0)
        yield KnownDifference(
            method=method,
            expected=1e-9 * (nanoseconds[1] - nanoseconds[0]),
            measured=long.median - short.median,
            interval=(low, high),
            tick=long.clock_tick,
        )


def _ratios(device: torch.device) -> Iterator[KnownRatio]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def in_line(first: _Call, second: _Call) -> None:
        first()
        second()

    def forked(first: _Call, second: _Call) -> None:
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            first()
        second()
        current.wait_stream(side)

    long = functools.partial(torch.ops.convtime.spin_ns, 400_000)
    short = functools.partial(torch.ops.convtime.spin_ns, 100_000)
    cases: tuple[tuple[str, float, _Way, _Call, _Call], ...] = (
        ("equal kernels on two streams", 0.5, forked, long, long),
        ("a short kernel next to a long one", 0.8, forked, short, long),
        ("equal kernels on one stream", 1.0, in_line, long, long),
    )
    for what, expected, way, first, second in cases:
        compared = compare(
            {
                "base": functools.partial(in_line, first, second),
                "other": functools.partial(way, first, second),
            },
            check=None,
            interference=False,
        )
        yield KnownRatio(what, expected, compared.verdict("other"), compared.ratio("other"))


def _pairs(device: torch.device) -> Iterator[KnownRatio]:
    operations: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {
        "relu": (torch.relu, (1 << 20,)),
        "copy": (torch.clone, (1 << 22,)),
        "softmax": (functools.partial(torch.softmax, dim=-1), (2048, 2048)),
        "matrix power": (functools.partial(torch.linalg.matrix_power, n=2), (1024, 1024)),
        "sum": (torch.sum, (1 << 22,)),
    }
    for what, (operation, shape) in operations.items():
        for _ in range(_EQUAL_PAIRS):
            both = [
                Candidate(operation, torch.randn(shape, device=device), name=name)
                for name in ("base", "other")
            ]
            compared = compare(both, check=None, interference=False, budget=0.5)
            yield KnownRatio(what, 1.0, compared.verdict("other"), compared.ratio("other"))


def _in_regime(regime: Regime, device: torch.device) -> tuple[float, float] | str:
    a = torch.randn(4096, 4096, device=device).to(torch.bfloat16)
    runs = [time_op(torch.mm, a, a, regime=regime, budget=0.3) for _ in range(2)]
    missed = [run.regime.reason for run in runs if run.regime != regime]
    return missed[0] if missed else (runs[0].median, runs[1].median)
