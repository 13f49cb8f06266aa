"""Derive causes from evidence, in pure functions that need no device.

Each rule looks for one cause. The thresholds are at the top and in effects.py;
docs/reference/causes.md explains them.
"""

from __future__ import annotations

import dataclasses

from convtime.diagnosis import cpu_rules
from convtime.diagnosis.diagnosis import Account, Cause, CauseCode
from convtime.diagnosis.effects import (
    LEAST_EFFECT,
    LEAST_EFFECT_ON_CPU,
    LIKELY,
    POSSIBLE,
    SURE,
    Rule,
    account_of,
    applicable,
    by_change,
    by_contrast,
    confidence_in,
    effect_of,
    extremes,
    times_in_words,
    variance_shares,
)
from convtime.diagnosis.evidence import Evidence, Held, Neighbors, Timing
from convtime.view.wording import format_seconds

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
    possible = (rule(evidence, account) for rule in rules)
    causes = [
        each for each in possible if each and each.confidence and each.effect >= least[each.code]
    ]
    distorted = _distorted(evidence, {cause.code for cause in causes})
    shares = variance_shares(evidence)
    causes = [
        dataclasses.replace(
            cause,
            confidence=cause.confidence * (DISTORTED if cause.code in distorted else 1),
            variance_share=shares.get(cause.code),
        )
        for cause in causes
    ]
    return tuple(sorted(causes, key=lambda cause: _weight(cause, evidence.on_gpu), reverse=True))


def _distorted(evidence: Evidence, codes: set[CauseCode]) -> set[CauseCode]:
    """Return causes whose evidence is distorted by another cause."""
    if distorting := codes & {"contention", "quota"}:
        return codes - distorting
    return {"clock"} if "data" in codes and evidence.work.remarkable_inputs else set()


def _weight(cause: Cause, on_gpu: bool) -> float:
    # A wrong result precedes any time. Other users of the device distort all other contrasts.
    first = {"missing-wait": 2.0, "contention": 1.0, "quota": 1.0}.get(cause.code, 0.0)
    # Times in a hypothetical state weigh less than times in the current state. On a CPU, an empty
    # cache slows down every short call.
    weight = 0.5 if cause.code == "cache" and not on_gpu else 1.0
    return first + weight * cause.effect * cause.confidence


def _missing_wait(evidence: Evidence, account: Account) -> Cause | None:  # noqa: ARG001
    seen = evidence.serialized
    if seen is None or not seen.repeats or not seen.differing:
        return None
    observed = f"{seen.differing} of {seen.calls} results differ from those of calls that wait"
    if seen.largest_error is not None:
        observed += f", by {seen.largest_error:.3g} at most"
    return Cause(
        code="missing-wait",
        sentence="the result is wrong unless each operation is awaited: some data is read before "
        "it is ready",
        evidence=(observed, "calls that wait give the same result each time"),
        effect=1.0,
        confidence=SURE,
    )


def _contention(evidence: Evidence, account: Account) -> Cause | None:  # noqa: ARG001
    seen, launches = evidence.neighbors or Neighbors(), evidence.work.other_launches
    slowed: dict[str, float] = {}  # by sign of others, the share of time that they take
    if launches >= OTHERS_LAUNCHES:
        slowed[
            "other threads of this process issued "
            f"{launches:.1f} kernels, copies or memsets per call"
        ] = LEAST_EFFECT["contention"]
    stretched = seen.spin / seen.spin_expected if seen.spin_expected > 0 else 1.0
    if stretched > STRETCHED:
        slowed[
            f"kernels with a known duration of {format_seconds(seen.spin_expected)} took "
            f"{format_seconds(seen.spin)}"
        ] = 1 - 1 / stretched
    if seen.highest_bytes_per_second:
        share = seen.copied_bytes_per_second / seen.highest_bytes_per_second
        if share < COPY_SHARE:
            slowed[f"a copy reaches {share:.0%} of the memory's peak rate"] = 1 - share / COPY_SHARE
    if not slowed:
        return None
    observed = applicable(
        *slowed,
        seen.other_processes and f"NVML lists {seen.other_processes} other processes on this GPU",
    )
    return Cause(
        code="contention",
        sentence="others use the GPU during the run",
        evidence=observed,
        effect=max(slowed.values()),
        confidence=SURE if len(observed) > 1 else LIKELY,
    )


def _first_call(evidence: Evidence, account: Account) -> Cause | None:
    first, *later = evidence.calls.first
    if not later:
        return None
    usual = min(*later, evidence.calls.waiting.median)
    extra = max(0.0, first - usual)
    run = CALLS_OF_A_RUN * account.seconds
    return Cause(
        code="first-call",
        sentence=f"the first call takes {format_seconds(first)}, and later calls take "
        f"{format_seconds(usual)}: the first call loads, compiles, searches or builds something",
        evidence=(
            f"that is {extra / (extra + run):.0%} of the first {CALLS_OF_A_RUN:,} calls' time",
        ),
        effect=extra / (extra + run),
        confidence=SURE,
    )


def _allocation(evidence: Evidence, account: Account) -> Cause | None:
    calls = evidence.calls
    requests = max(calls.allocations, calls.frees)
    if requests < IN_EACH_CALL:
        return None
    # Traced calls may have found blocks in PyTorch's cache that calls in the loop did not find.
    traced = evidence.trace is not None and evidence.trace.allocations >= IN_EACH_CALL
    lost = account.allocating if traced else account.idle
    return Cause(
        code="allocation",
        sentence="calls request memory from CUDA or return it, instead of using PyTorch's cache",
        evidence=(
            f"each call requests {calls.allocations:.1f} blocks and returns {calls.frees:.1f}",
            f"this takes {format_seconds(lost)} of {format_seconds(account.seconds)}",
        ),
        effect=min(1.0, lost / account.seconds),
        confidence=SURE if traced else POSSIBLE,
    )


def _transfer(evidence: Evidence, account: Account) -> Cause | None:
    trace, copied = evidence.trace, evidence.work.copied_bytes
    if trace is None or trace.copies <= 0 or _copies_answers(evidence):
        return None
    lost = min(
        account.seconds - min(trace.kernels, account.seconds), account.copies + trace.copying
    )
    kind = "pageable" if trace.pageable > trace.pinned else "pinned"
    return Cause(
        code="transfer",
        sentence=f"copies between host and GPU ({kind} memory) take {format_seconds(lost)} during "
        "which no kernel runs",
        evidence=applicable(
            f"{format_seconds(trace.copies)} of copies, including "
            f"{format_seconds(trace.hidden_copies)} concurrent with kernels",
            copied and f"each call copies {copied / 1e6:,.1f} MB",
            trace.pageable
            and f"{format_seconds(trace.pageable)} of copies use pageable memory, and the host "
            "waits for them",
        ),
        effect=lost / account.seconds,
        confidence=SURE,
    )


def _mapped(evidence: Evidence, account: Account) -> Cause | None:
    if not evidence.work.mapped_bytes:
        return None
    sentence = (
        "kernels access the host's memory (mapped) while they run: the call takes {here}, but "
        "{best} on copies in the GPU's memory"
    )
    observed = (
        f"{evidence.work.mapped_bytes / 1e6:,.1f} MB of its tensors are in the host's memory",
        *times_in_words(evidence, "placement"),
    )
    return by_change("transfer", sentence, observed, evidence, account, "placement")


def _copies_answers(evidence: Evidence) -> bool:
    """Return whether all copies are small results that the host waits for."""
    return 0 < evidence.work.copied_bytes < SMALL_COPY


def _synchronisation(evidence: Evidence, account: Account) -> Cause | None:
    if not _waits_inside(evidence):
        return None
    trace, held = evidence.trace, evidence.held
    observed = applicable(
        trace is not None
        and f"the host waits {trace.waits:.1f} times in each call, "
        f"{format_seconds(trace.waiting)} in total",
        held is not None
        and _returned_late(held)
        and f"after {format_seconds(held.held)} of other work, a call returned after "
        f"{format_seconds(held.returned)}",
        evidence.work.held is False
        and "the queue cannot be held, since the call itself waits for the GPU",
    )
    # Memory and copies cost host time, including waits, even without other waits.
    copying = trace.copying if trace and not _copies_answers(evidence) else 0.0
    issuing = _launching(evidence, account) + account.allocating + copying
    without = max(account.busy, issuing)
    return Cause(
        code="synchronisation",
        sentence="the host waits for the GPU inside the call, and then the GPU waits for the host",
        evidence=observed,
        effect=max(0.0, 1 - without / account.seconds),
        confidence=SURE if len(observed) > 1 else LIKELY,
    )


def _waits_inside(evidence: Evidence) -> bool:
    trace, held = evidence.trace, evidence.held
    if trace is not None:
        return trace.waits >= IN_EACH_CALL
    late = held is not None and _returned_late(held)
    return evidence.on_gpu and (late or evidence.work.held is False)


def _returned_late(held: Held) -> bool:
    return held.returned >= 0.9 * held.held


def _launching(evidence: Evidence, account: Account) -> float:
    """Return the seconds that the host needs to issue a call, without waits and related work."""
    smallest = evidence.smallest_launch
    if smallest is None or _works_on_host(evidence, account) or not _waits_inside(evidence):
        return account.issuing
    return min(account.issuing, BARE_LAUNCH * smallest * account.launches)


def _works_on_host(evidence: Evidence, account: Account) -> bool:
    """Return whether the host does substantial work in a call besides launches."""
    if evidence.smallest_launch is None:
        return False
    launches = max(1.0, account.launches)
    return account.issuing > OWN_WORK * evidence.smallest_launch * launches


def _host(evidence: Evidence, account: Account) -> Cause | None:
    issuing = _launching(evidence, account)
    stalled = min(account.idle, max(0.0, issuing - account.busy))
    graph = evidence.seconds("method", "graph")
    code: CauseCode = "launch-bound"
    sentence = "the GPU waits for launches: issuing its kernels takes longer than running them"
    if _works_on_host(evidence, account):
        code, sentence = "host-bound", "the GPU waits for the host's own work between launches"
    return Cause(
        code=code,
        sentence=sentence,
        evidence=applicable(
            f"the host takes {format_seconds(issuing)} to issue {account.launches:.0f} launches, "
            f"and the GPU takes {format_seconds(account.busy)} to run them",
            graph is not None and f"a call takes {format_seconds(graph)} in a CUDA graph",
        ),
        effect=stalled / account.seconds,
        confidence=SURE if issuing > 1.2 * account.busy else LIKELY,
    )


def _cache(evidence: Evidence, account: Account) -> Cause | None:
    times = evidence.contrasts.get("cache", {})
    if len(times) < 2:
        return None
    (slow, slower), (fast, faster) = extremes(times)
    read, written = map(evidence.counters.get, (BYTES_READ, BYTES_WRITTEN))
    observed = applicable(
        *times_in_words(evidence, "cache"),
        read is not None
        and written is not None
        and f"cold: reads {read / 1e6:,.1f} MB of the GPU's memory, writes {written / 1e6:,.1f} MB",
    )
    sentence = (
        f"the time depends on the cache: {format_seconds(slower.median)} {slow}, "
        f"{format_seconds(faster.median)} {fast}"
    )
    return by_contrast("cache", sentence, observed, account, slower, faster)


def _clock(evidence: Evidence, account: Account) -> Cause | None:
    burst, sustained = evidence.timing("regime", "burst"), evidence.timing("regime", "sustained")
    if burst and sustained and sustained.median > burst.median:
        observed = applicable(
            *times_in_words(evidence, "regime"),
            burst.clock_hz
            and sustained.clock_hz
            and f"the clock is {burst.clock_hz / 1e6:.0f} and {sustained.clock_hz / 1e6:.0f} MHz",
        )
        sentence = (
            f"it takes {format_seconds(sustained.median)} under sustained load, but "
            f"{format_seconds(burst.median)} on a rested GPU: power lowers the clock"
        )
        return by_contrast("clock", sentence, observed, account, sustained, burst, in_cycles=False)
    highest = evidence.work.highest_clock_hz
    seen = burst or evidence.timing("cache", "warm")
    if not (highest and seen and seen.clock_hz and seen.clock_hz < LOW_CLOCK * highest):
        return None
    share = seen.clock_hz / highest
    return Cause(
        code="clock",
        sentence=f"the GPU's clock is {share:.0%} of its highest: the GPU is locked, capped, "
        "hot, or at its power limit",
        evidence=(f"{seen.clock_hz / 1e6:.0f} of {highest / 1e6:.0f} MHz",),
        effect=(1 - share) * min(1.0, seen.median / account.seconds),
        confidence=POSSIBLE,
    )


def _placement(evidence: Evidence, account: Account) -> Cause | None:
    work = evidence.work
    if work.mapped_bytes:  # their copies are in other memory, not only at other addresses
        return None
    sentence = "the call takes {here} at the tensors' addresses, but {best} at other addresses"
    observed = times_in_words(evidence, "placement")
    moved = by_change("placement", sentence, observed, evidence, account, "placement")
    if moved or work.place_spread is None or work.place_share is None or work.place_share < 0.5:
        return moved
    return Cause(
        code="placement",
        sentence=f"addresses alone change its time by {work.place_spread:.1%}",
        evidence=(f"{work.place_share:.0%} of the samples' variance is between placements",),
        effect=work.place_spread / 2 * min(1.0, work.seconds / account.seconds),
        confidence=LIKELY,
    )


def _layout(evidence: Evidence, account: Account) -> Cause | None:
    work, wasteful = evidence.work, _wasteful_bytes(evidence)
    observed = applicable(
        *times_in_words(evidence, "layout"),
        work.conversion > 0
        and f"conversions between layouts take {format_seconds(work.conversion)}",
        wasteful
        and f"one kernel reads {wasteful / 1e6:,.1f} MB of the GPU's memory, but its tensors have "
        f"only {work.tensor_bytes / 1e6:,.1f} MB",
    )
    sentence = "the call takes {here} in the tensors' layout, but {best} with {name} tensors"
    changed = by_change("layout", sentence, observed, evidence, account, "layout")
    if changed or not wasteful:
        return changed
    return Cause(
        code="layout",
        sentence="memory accesses are not coalesced: most of the bytes read are unused",
        evidence=observed,
        effect=(1 - work.tensor_bytes / wasteful) * min(1.0, work.seconds / account.seconds),
        confidence=POSSIBLE,
    )


def _wasteful_bytes(evidence: Evidence) -> float:
    """Return the bytes that a single memory-bound kernel reads if they far exceed its tensors'."""
    read, work = evidence.counters.get(BYTES_READ, 0.0), evidence.work
    highest = evidence.neighbors.highest_bytes_per_second if evidence.neighbors else None
    if not highest or work.kernels != 1 or not work.tensor_bytes:
        return 0.0
    is_bound = read > BUSY_MEMORY * highest * work.seconds
    return read if is_bound and read > READ_OVER_GIVEN * work.tensor_bytes else 0.0


def _data(evidence: Evidence, account: Account) -> Cause | None:
    others = dict(evidence.contrasts.get("data", {}))
    given = others.pop("as given", None)
    if given is None or not others:
        return None
    constant = evidence.work.remarkable_inputs > 0
    if constant and "random" in others:  # constant inputs are the exception; these are typical
        others = {"random": others["random"]}
    name, other = max(others.items(), key=lambda entry: abs(entry[1].median - given.median))
    slower, faster = sorted((given, other), key=lambda each: each.median, reverse=True)
    observed = applicable(
        *times_in_words(evidence, "data"),
        constant and "the input is constant, or mostly NaN or denormal",
    )
    sentence = (
        f"the time depends on the values: {format_seconds(given.median)} as given, "
        f"{format_seconds(other.median)} with {name}"
    )
    # Values that draw less power raise the clock. For ordinary inputs, the cause is the clock.
    return by_contrast("data", sentence, observed, account, slower, faster, in_cycles=not constant)


def _process(evidence: Evidence, account: Account) -> Cause | None:
    times = dict(evidence.contrasts.get("process", {}))
    if len(times) < 2:
        return None
    if not evidence.on_gpu:
        # A CPU's times also change during a process, so earlier timings are included.
        alike = (("threads", "as-is"), ("placement", "as-is"), ("pages", "retained"))
        here = [evidence.timing(*each) for each in alike]
        times["here"] = Timing.joined([times["here"], *(each for each in here if each)])
    (slow, slower), (fast, faster) = extremes(times)
    return Cause(
        code="process",
        sentence=f"it takes {format_seconds(slower.median)} {slow}, but "
        f"{format_seconds(faster.median)} {fast}: the difference is specific to the process",
        evidence=times_in_words(evidence, "process"),
        effect=effect_of(slower, faster, account),
        confidence=min(LIKELY, confidence_in(slower, faster)),
    )


_RULES: tuple[Rule, ...] = (
    _missing_wait,
    _contention,
    _first_call,
    _allocation,
    _mapped,
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
