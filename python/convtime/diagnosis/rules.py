"""Derive causes from evidence, in pure functions that need no device.

Each rule looks for one cause. The thresholds are at the top; docs/reference/causes.md explains
them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from convtime.core.units import format_seconds
from convtime.diagnosis import cpu_rules
from convtime.diagnosis.account import account_of
from convtime.diagnosis.diagnosis import Account, Cause, CauseCode
from convtime.diagnosis.evidence import Evidence, Timing
from convtime.diagnosis.weighing import (
    LIKELY,
    POSSIBLE,
    SURE,
    Rule,
    best_change,
    confidence_in,
    effect_of,
    extremes,
    told_of,
)

#: Least effect of a reported cause, as a share of a call's time.
LEAST_EFFECT: Mapping[CauseCode, float] = {
    "launch-bound": 0.10,
    "host-bound": 0.10,
    "synchronisation": 0.05,
    "missing-wait": 0.0,
    "allocation": 0.05,
    "first-call": 0.10,
    "cache": 0.10,
    "clock": 0.05,
    "placement": 0.02,
    "contention": 0.10,
    "layout": 0.08,
    "transfer": 0.10,
    "data": 0.05,
    "process": 0.05,
}
#: The same on a CPU, where times vary more.
LEAST_EFFECT_ON_CPU: Mapping[CauseCode, float] = {
    "contention": 0.10,
    "quota": 0.05,
    "blocking": 0.10,
    "threads": 0.10,
    "page-faults": 0.15,
    "allocation": 0.15,
    "python-overhead": 0.25,
    "denormals": 0.15,
    "numa": 0.10,
    "clock": 0.10,
    "first-call": 0.10,
    "cache": 0.25,  # an empty cache slows down every short call
    "placement": 0.15,
    "layout": 0.15,
    "data": 0.15,
    "process": 0.15,
}

#: Factor for other confidences if others use the device. It also applies to ``clock`` if input
#: values are constant, since these draw an unrealistic amount of power.
DISTORTED = 0.6
#: Number of calls that a first call is compared with.
CALLS_OF_A_RUN = 1000
#: Relative to the host time of PyTorch's smallest operation: the cost of a bare launch, and the
#: time per launch above which the device waits for the host's own work, not for launches.
BARE_LAUNCH, OWN_WORK = 0.35, 5.0
#: Least number of waits or allocations per call that counts as part of the call.
IN_EACH_CALL = 0.5
#: Least number of launches by other threads per call that counts as use of the GPU.
OTHERS_LAUNCHES = 0.1
#: Bytes of a call's copies below which they count as results that the host waits for.
SMALL_COPY = 64 << 10
#: Others use the GPU if a copy stays below this share of the peak memory rate, or if work of known
#: duration takes more than this many times as long.
COPY_SHARE, STRETCHED = 0.70, 1.15
#: Share of the highest clock below which even bursts are limited.
LOW_CLOCK = 0.90
#: Counters of memory traffic, and the ratio of bytes read to tensor bytes that is wasteful.
BYTES_READ, BYTES_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
READ_OVER_GIVEN = 2.5
#: Share of the peak memory rate below which a kernel is not memory-bound.
BUSY_MEMORY = 0.5


def judge(evidence: Evidence) -> tuple[Cause, ...]:
    """Return the causes that dominate an operation's time or make it vary, by descending weight."""
    account = account_of(evidence)
    rules, least = (_RULES, LEAST_EFFECT) if evidence.on_gpu else (_CPU_RULES, LEAST_EFFECT_ON_CPU)
    found = [cause for rule in rules for cause in rule(evidence, account)]
    found = [each for each in found if each.confidence and each.effect >= least[each.code]]
    if distorted := _distorted(evidence, {cause.code for cause in found}):
        found = [_less_sure(cause) if cause.code in distorted else cause for cause in found]
    shares = variance_shares(evidence)
    found = [dataclasses.replace(each, variance_share=shares.get(each.code)) for each in found]
    return tuple(sorted(found, key=lambda each: _weight(each, evidence.on_gpu), reverse=True))


def _distorted(evidence: Evidence, found: set[CauseCode]) -> set[CauseCode]:
    """Return causes whose evidence is distorted by another cause."""
    if distorting := found & {"contention", "quota"}:
        return found - distorting
    return {"clock"} if "data" in found and evidence.work.remarkable_inputs else set()


def _less_sure(cause: Cause) -> Cause:
    return dataclasses.replace(cause, confidence=DISTORTED * cause.confidence)


def _weight(cause: Cause, on_gpu: bool) -> float:
    # A wrong result precedes any time. Other users of the device distort all other contrasts.
    first = {"missing-wait": 2.0, "contention": 1.0, "quota": 1.0}.get(cause.code, 0.0)
    # Times in a hypothetical state weigh less than times in the current state. On a CPU, an empty
    # cache slows down every short call.
    weight = 0.5 if cause.code == "cache" and not on_gpu else 1.0
    return first + weight * cause.effect * cause.confidence


def variance_shares(evidence: Evidence) -> dict[CauseCode, float]:
    """Return the share of the variance of log times between the conditions of each contrast.

    The two extreme conditions of a contrast are assumed to be equally frequent and independent of
    other contrasts. The rest is the variance of samples under one condition.
    """
    parts: dict[CauseCode, float] = {}
    for code, contrast in _VARIED.items():
        medians = [each.median for each in evidence.contrasts.get(contrast, {}).values()]
        if len(medians) > 1 and min(medians) > 0:
            parts[code] = (math.log(max(medians) / min(medians)) / 2) ** 2
    whole = sum(parts.values()) + evidence.calls.loop.deviation**2
    return {code: part / whole for code, part in parts.items()} if whole > 0 else {}


_VARIED: Mapping[CauseCode, str] = {
    "cache": "cache",
    "clock": "regime",
    "placement": "placement",
    "layout": "layout",
    "data": "data",
    "threads": "threads",
    "process": "process",
    "page-faults": "pages",
    "denormals": "denormals",
}


def _missing_wait(evidence: Evidence, account: Account) -> Iterator[Cause]:  # noqa: ARG001
    seen = evidence.serialized
    if seen is None or not seen.repeats or not seen.differing:
        return
    told = f"{seen.differing} of {seen.calls} results differ from those of calls that wait"
    if seen.largest_error is not None:
        told += f", by {seen.largest_error:.3g} at most"
    yield Cause(
        code="missing-wait",
        sentence="the result is wrong unless each operation is awaited: some data is read before "
        "it is ready",
        evidence=(told, "calls that wait give the same result each time"),
        effect=1.0,
        confidence=SURE,
    )


def _contention(evidence: Evidence, account: Account) -> Iterator[Cause]:  # noqa: ARG001
    seen = evidence.neighbors
    told, slowed = [], [0.0]
    if evidence.work.other_launches >= OTHERS_LAUNCHES:
        told.append(
            "other threads of this process issued "
            f"{evidence.work.other_launches:.1f} kernels, copies or memsets per call"
        )
        slowed.append(LEAST_EFFECT["contention"])
    if seen is not None and seen.spin_expected > 0:
        stretched = seen.spin / seen.spin_expected
        if stretched > STRETCHED:
            told.append(
                f"kernels with a known duration of {format_seconds(seen.spin_expected)} took "
                f"{format_seconds(seen.spin)}"
            )
            slowed.append(1 - 1 / stretched)
    if seen is not None and seen.highest_bytes_per_second:
        share = seen.copied_bytes_per_second / seen.highest_bytes_per_second
        if share < COPY_SHARE:
            told.append(f"a copy reaches {share:.0%} of the memory's peak rate")
            slowed.append(1 - share / COPY_SHARE)
    if not told:
        return
    if seen is not None and seen.other_processes:
        told.append(f"NVML lists {seen.other_processes} other processes on this GPU")
    yield Cause(
        code="contention",
        sentence="others use the GPU during the run",
        evidence=tuple(told),
        effect=max(slowed),
        confidence=SURE if len(told) > 1 else LIKELY,
    )


def _first_call(evidence: Evidence, account: Account) -> Iterator[Cause]:
    first, *later = evidence.calls.first
    if not later:
        return
    usual = min(*later, evidence.calls.waiting.median)
    extra = max(0.0, first - usual)
    run = CALLS_OF_A_RUN * account.seconds
    yield Cause(
        code="first-call",
        sentence=f"the first call takes {format_seconds(first)}, and later calls take "
        f"{format_seconds(usual)}: the first call loads, compiles, searches or builds something",
        evidence=(
            f"that is {extra / (extra + run):.0%} of the first {CALLS_OF_A_RUN:,} calls' time",
        ),
        effect=extra / (extra + run),
        confidence=SURE,
    )


def _allocation(evidence: Evidence, account: Account) -> Iterator[Cause]:
    calls = evidence.calls
    asked = max(calls.allocations, calls.frees)
    if asked < IN_EACH_CALL:
        return
    # Traced calls may have found blocks in PyTorch's cache that calls in the loop did not find.
    traced = evidence.trace is not None and evidence.trace.allocations >= IN_EACH_CALL
    lost = account.allocating if traced else account.idle
    yield Cause(
        code="allocation",
        sentence="calls request memory from CUDA or return it, instead of using PyTorch's cache",
        evidence=(
            f"each call requests {calls.allocations:.1f} blocks and returns {calls.frees:.1f}",
            f"this takes {format_seconds(lost)} of {format_seconds(account.seconds)}",
        ),
        effect=min(1.0, lost / account.seconds),
        confidence=SURE if traced else POSSIBLE,
    )


def _transfer(evidence: Evidence, account: Account) -> Iterator[Cause]:
    yield from _mapped(evidence, account)
    trace, copied = evidence.trace, evidence.work.copied_bytes
    if trace is None or trace.copies <= 0 or _copies_answers(evidence):
        return
    lost = min(
        account.seconds - min(trace.kernels, account.seconds), account.copies + trace.copying
    )
    kind = "pageable" if trace.pageable > trace.pinned else "pinned"
    told = [
        f"{format_seconds(trace.copies)} of copies, including "
        f"{format_seconds(trace.hidden_copies)} concurrent with kernels"
    ]
    if copied:
        told.append(f"each call copies {copied / 1e6:,.1f} MB")
    if trace.pageable:
        told.append(
            f"{format_seconds(trace.pageable)} of copies use pageable memory, and the host waits "
            "for them"
        )
    yield Cause(
        code="transfer",
        sentence=f"copies between host and GPU ({kind} memory) take {format_seconds(lost)} during "
        "which no kernel runs",
        evidence=tuple(told),
        effect=lost / account.seconds,
        confidence=SURE,
    )


def _mapped(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = best_change(evidence, "placement")  # to copies in the GPU's memory
    if not evidence.work.mapped_bytes or found is None:
        return
    here, _, elsewhere = found
    yield Cause(
        code="transfer",
        sentence=f"kernels access the host's memory (mapped) while they run: the call takes "
        f"{format_seconds(here.median)}, but {format_seconds(elsewhere.median)} on copies in the "
        "GPU's memory",
        evidence=(
            f"{evidence.work.mapped_bytes / 1e6:,.1f} MB of its tensors are in the host's memory",
            *told_of(evidence, "placement"),
        ),
        effect=effect_of(here, elsewhere, account),
        confidence=confidence_in(here, elsewhere),
    )


def _copies_answers(evidence: Evidence) -> bool:
    """Return whether all copies are small results that the host waits for."""
    return 0 < evidence.work.copied_bytes < SMALL_COPY


def _synchronisation(evidence: Evidence, account: Account) -> Iterator[Cause]:
    if not _waits_inside(evidence):
        return
    told = []
    if evidence.trace is not None:
        told.append(
            f"the host waits {evidence.trace.waits:.1f} times in each call, "
            f"{format_seconds(evidence.trace.waiting)} in total"
        )
    if evidence.held is not None and _returned_late(evidence):
        told.append(
            f"after {format_seconds(evidence.held.held)} of other work, a call returned after "
            f"{format_seconds(evidence.held.returned)}"
        )
    if evidence.work.held is False:
        told.append("the queue cannot be held, since the call itself waits for the GPU")
    # Memory and copies cost host time, including waits, even without other waits.
    copying = evidence.trace.copying if evidence.trace and not _copies_answers(evidence) else 0.0
    issuing = _launching(evidence, account) + account.allocating + copying
    without = max(account.busy, issuing)
    yield Cause(
        code="synchronisation",
        sentence="the host waits for the GPU inside the call, and then the GPU waits for the host",
        evidence=tuple(told),
        effect=max(0.0, 1 - without / account.seconds),
        confidence=SURE if len(told) > 1 else LIKELY,
    )


def _waits_inside(evidence: Evidence) -> bool:
    trace = evidence.trace
    if trace is not None:
        return trace.waits >= IN_EACH_CALL
    return evidence.on_gpu and (_returned_late(evidence) or evidence.work.held is False)


def _returned_late(evidence: Evidence) -> bool:
    held = evidence.held
    return held is not None and held.returned >= 0.9 * held.held


def _launching(evidence: Evidence, account: Account) -> float:
    """Return the seconds that the host needs to issue a call, without waits and related work."""
    if evidence.smallest_launch is None or _works_on_host(evidence, account):
        return account.issuing
    if not _waits_inside(evidence):
        return account.issuing
    return min(account.issuing, BARE_LAUNCH * evidence.smallest_launch * account.launches)


def _works_on_host(evidence: Evidence, account: Account) -> bool:
    """Return whether the host does substantial work in a call besides launches."""
    if evidence.smallest_launch is None:
        return False
    launches = max(1.0, account.launches)
    return account.issuing > OWN_WORK * evidence.smallest_launch * launches


def _host(evidence: Evidence, account: Account) -> Iterator[Cause]:
    issuing = _launching(evidence, account)
    stalled = min(account.idle, max(0.0, issuing - account.busy))
    told = [
        f"the host takes {format_seconds(issuing)} to issue {account.launches:.0f} launches, and "
        f"the GPU takes {format_seconds(account.busy)} to run them",
    ]
    graph = evidence.seconds("method", "graph")
    if graph is not None:
        told.append(f"a call takes {format_seconds(graph)} in a CUDA graph")
    if _works_on_host(evidence, account):
        code: CauseCode = "host-bound"
        sentence = "the GPU waits for the host's own work between launches"
    else:
        code = "launch-bound"
        sentence = "the GPU waits for launches: issuing its kernels takes longer than running them"
    yield Cause(
        code=code,
        sentence=sentence,
        evidence=tuple(told),
        effect=stalled / account.seconds,
        confidence=SURE if issuing > 1.2 * account.busy else LIKELY,
    )


def _cache(evidence: Evidence, account: Account) -> Iterator[Cause]:
    times = evidence.contrasts.get("cache", {})
    if len(times) < 2:
        return
    (slow, slower), (fast, faster) = extremes(times)
    told = list(told_of(evidence, "cache"))
    moved = [evidence.counters.get(each) for each in (BYTES_READ, BYTES_WRITTEN)]
    if None not in moved:
        read, written = (each / 1e6 for each in moved if each is not None)
        told.append(f"cold: reads {read:,.1f} MB of the GPU's memory, writes {written:,.1f} MB")
    yield Cause(
        code="cache",
        sentence=f"the time depends on the cache: {format_seconds(slower.median)} {slow}, "
        f"{format_seconds(faster.median)} {fast}",
        evidence=tuple(told),
        effect=effect_of(slower, faster, account),
        confidence=confidence_in(slower, faster),
    )


def _clock(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = evidence.contrasts.get("regime", {})
    if {"burst", "sustained"} <= set(found):
        burst, sustained = found["burst"], found["sustained"]
        clocks = [each.clock_hz for each in (burst, sustained)]
        told = list(told_of(evidence, "regime"))
        if None not in clocks:
            told.append(
                "the clock is {:.0f} and {:.0f} MHz".format(*(hz / 1e6 for hz in clocks if hz))
            )
        if sustained.median > burst.median:
            yield Cause(
                code="clock",
                sentence=f"it takes {format_seconds(sustained.median)} under sustained load, but "
                f"{format_seconds(burst.median)} on a rested GPU: power lowers the clock",
                evidence=tuple(told),
                effect=effect_of(sustained, burst, account, in_cycles=False),
                confidence=confidence_in(sustained, burst),
            )
            return
    highest = evidence.work.highest_clock_hz
    seen = found.get("burst") or evidence.timing("cache", "warm")
    if highest and seen is not None and seen.clock_hz and seen.clock_hz < LOW_CLOCK * highest:
        share = seen.clock_hz / highest
        yield Cause(
            code="clock",
            sentence=f"the GPU's clock is {share:.0%} of its highest: the GPU is locked, capped, "
            "hot, or at its power limit",
            evidence=(f"{seen.clock_hz / 1e6:.0f} of {highest / 1e6:.0f} MHz",),
            effect=(1 - share) * min(1.0, seen.median / account.seconds),
            confidence=POSSIBLE,
        )


def _placement(evidence: Evidence, account: Account) -> Iterator[Cause]:
    if evidence.work.mapped_bytes:  # their copies are in other memory, not only at other addresses
        return
    found = best_change(evidence, "placement")
    if found is not None:
        here, _, elsewhere = found
        yield Cause(
            code="placement",
            sentence=f"the call takes {format_seconds(here.median)} at the tensors' addresses, but "
            f"{format_seconds(elsewhere.median)} at other addresses",
            evidence=told_of(evidence, "placement"),
            effect=effect_of(here, elsewhere, account),
            confidence=confidence_in(here, elsewhere),
        )
        return
    spread, share = evidence.work.place_spread, evidence.work.place_share
    if spread is not None and share is not None and share >= 0.5:
        yield Cause(
            code="placement",
            sentence=f"addresses alone change its time by {spread:.1%}",
            evidence=(f"{share:.0%} of the samples' variance is between placements",),
            effect=spread / 2 * min(1.0, evidence.work.seconds / account.seconds),
            confidence=LIKELY,
        )


def _layout(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = best_change(evidence, "layout")
    told = list(told_of(evidence, "layout"))
    if evidence.work.conversion > 0:
        told.append(f"conversions between layouts take {format_seconds(evidence.work.conversion)}")
    read, given = evidence.counters.get(BYTES_READ), evidence.work.tensor_bytes
    wasteful = _reads_in_vain(evidence)
    if read and wasteful:
        told.append(
            f"one kernel reads {read / 1e6:,.1f} MB of the GPU's memory, but its tensors have only "
            f"{given / 1e6:,.1f} MB"
        )
    if found is not None:
        here, name, best = found
        yield Cause(
            code="layout",
            sentence=f"the call takes {format_seconds(here.median)} in the tensors' layout, but "
            f"{format_seconds(best.median)} with {name} tensors",
            evidence=tuple(told),
            effect=effect_of(here, best, account),
            confidence=confidence_in(here, best),
        )
    elif read and wasteful:
        yield Cause(
            code="layout",
            sentence="memory accesses are not coalesced: most of the bytes read are unused",
            evidence=tuple(told),
            effect=(1 - given / read) * min(1.0, evidence.work.seconds / account.seconds),
            confidence=POSSIBLE,
        )


def _reads_in_vain(evidence: Evidence) -> bool:
    """Return whether a single kernel is memory-bound and reads far more than its tensors' bytes."""
    read, work = evidence.counters.get(BYTES_READ), evidence.work
    highest = evidence.neighbors.highest_bytes_per_second if evidence.neighbors else None
    if read is None or not highest or work.kernels != 1 or not work.tensor_bytes:
        return False
    is_bound = read > BUSY_MEMORY * highest * work.seconds
    return is_bound and read > READ_OVER_GIVEN * work.tensor_bytes


def _data(evidence: Evidence, account: Account) -> Iterator[Cause]:
    data = evidence.contrasts.get("data", {})
    if "as given" not in data or len(data) < 2:
        return
    given = data["as given"]
    constant = evidence.work.remarkable_inputs > 0
    others = {name: each for name, each in data.items() if name != "as given"}
    if constant:  # constant inputs are the exception; random values are typical
        others = {name: each for name, each in others.items() if name == "random"} or others
    name, other = max(others.items(), key=lambda entry: abs(entry[1].median - given.median))
    slower, faster = sorted((given, other), key=lambda each: each.median, reverse=True)
    # Values that draw less power raise the clock. For ordinary inputs, the cause is the clock.
    yield Cause(
        code="data",
        sentence=f"the time depends on the values: {format_seconds(given.median)} as given, "
        f"{format_seconds(other.median)} with {name}",
        evidence=(
            *told_of(evidence, "data"),
            *(["the input is constant, or mostly NaN or denormal"] if constant else []),
        ),
        effect=effect_of(slower, faster, account, in_cycles=not constant),
        confidence=confidence_in(slower, faster),
    )


def _process(evidence: Evidence, account: Account) -> Iterator[Cause]:
    times = dict(evidence.contrasts.get("process", {}))
    if len(times) < 2:
        return
    if not evidence.on_gpu:
        # A CPU's times also change during a process, so earlier timings are included.
        alike = (("threads", "as-is"), ("placement", "as-is"), ("pages", "retained"))
        here = [evidence.timing(*each) for each in alike]
        times["here"] = Timing.joined([times["here"], *(each for each in here if each)])
    (slow, slower), (fast, faster) = extremes(times)
    yield Cause(
        code="process",
        sentence=f"it takes {format_seconds(slower.median)} {slow}, but "
        f"{format_seconds(faster.median)} {fast}: the difference is specific to the process",
        evidence=told_of(evidence, "process"),
        effect=effect_of(slower, faster, account),
        confidence=min(LIKELY, confidence_in(slower, faster)),
    )


_RULES: tuple[Rule, ...] = (
    _missing_wait,
    _contention,
    _first_call,
    _allocation,
    _transfer,
    _synchronisation,
    _host,
    _cache,
    _clock,
    _placement,
    _layout,
    _data,
    _process,
)

_CPU_RULES: tuple[Rule, ...] = (
    *cpu_rules.RULES,
    _first_call,
    _cache,
    _placement,
    _layout,
    _data,
    _process,
)
