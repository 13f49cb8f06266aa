"""From evidence to causes: pure functions, which see numbers and no device.

Each rule looks for one cause. The thresholds are at the top; what each of them decides is in
docs/why-times-differ.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from convtime.results.diagnosis import Account, Cause, CauseCode
from convtime.results.evidence import Evidence, Timing
from convtime.results.units import format_seconds
from convtime.study.diagnose import cpu_rules
from convtime.study.diagnose.account import account_of
from convtime.study.diagnose.weighing import (
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

#: The share of a call's time that a cause has to take, or move it by, in order to be named.
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
#: On a CPU, whose times vary more.
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
    "cache": 0.15,
    "placement": 0.15,
    "layout": 0.15,
    "data": 0.15,
    "process": 0.15,
}

#: What other confidences are multiplied by where others use the device; and that of the clock's
#: where constant numbers are computed with, which draw other power than those of any use.
DISTORTED = 0.6
#: So many calls a first call is set against.
CALLS_OF_A_RUN = 1000
#: Of what PyTorch's smallest operation takes the host: a bare launch; and from where on it is the
#: host's own work that the device waits for, and no launch.
BARE_LAUNCH, OWN_WORK = 0.35, 5.0
#: Waits or allocations in each call, from where on they belong to it.
IN_EACH_CALL = 0.5
#: Launches of other threads for each call, from where on they use the GPU meanwhile.
OTHERS_LAUNCHES = 0.1
#: Bytes of a call's copies below which they are answers that the host waits for.
SMALL_COPY = 64 << 10
#: A copy reaches this share of what the memory could, or others use it; work of known duration may
#: take so many times as long.
COPY_SHARE, STRETCHED = 0.70, 1.15
#: Of the highest clock: below it, even bursts are held back.
LOW_CLOCK = 0.90
#: Counters: bytes of the GPU's memory, from where on a kernel reads many times what it is given.
BYTES_READ, BYTES_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
READ_OVER_GIVEN = 2.5
#: Of the rate that the memory can have: a kernel that reads at less does not wait for it.
BUSY_MEMORY = 0.5


def judge(evidence: Evidence) -> tuple[Cause, ...]:
    """What an operation's time is due to, and what it changes with; the weightiest first."""
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
    """Causes that another one distorts the evidence of."""
    if distorting := found & {"contention", "quota"}:
        return found - distorting
    return {"clock"} if "data" in found and evidence.work.remarkable_inputs else set()


def _less_sure(cause: Cause) -> Cause:
    return dataclasses.replace(cause, confidence=DISTORTED * cause.confidence)


def _weight(cause: Cause, on_gpu: bool) -> float:
    # A wrong result comes before any time; and what others do distorts all other contrasts.
    first = {"missing-wait": 2.0, "contention": 1.0, "quota": 1.0}.get(cause.code, 0.0)
    # What a call would take in another state weighs less than what it takes in its own: on a CPU,
    # an empty cache slows down all that is short.
    weight = 0.5 if cause.code == "cache" and not on_gpu else 1.0
    return first + weight * cause.effect * cause.confidence


def variance_shares(evidence: Evidence) -> dict[CauseCode, float]:
    """How much of the variance of log times lies between the conditions of each contrast.

    As if each of the two extreme conditions of a contrast were met as often as the other, and
    independently of other contrasts; the rest is what samples under one condition vary by.
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
    seen = evidence.serialised
    if seen is None or not seen.repeats or not seen.differing:
        return
    told = f"{seen.differing} of {seen.calls} results differ from those of calls that wait"
    if seen.largest_error is not None:
        told += f", by {seen.largest_error:.3g} at most"
    yield Cause(
        code="missing-wait",
        sentence="the result is wrong unless each operation is waited for: something is read "
        "before it is there",
        evidence=(told, "calls that wait give the same result each time"),
        effect=1.0,
        confidence=SURE,
    )


def _contention(evidence: Evidence, account: Account) -> Iterator[Cause]:  # noqa: ARG001
    seen = evidence.neighbours
    told, slowed = [], [0.0]
    if evidence.work.other_launches >= OTHERS_LAUNCHES:
        told.append(
            f"other threads of this process gave the GPU {evidence.work.other_launches:.1f} "
            "kernels, copies or memsets for each call"
        )
        slowed.append(LEAST_EFFECT["contention"])
    if seen is not None and seen.spin_expected > 0:
        stretched = seen.spin / seen.spin_expected
        if stretched > STRETCHED:
            told.append(
                f"kernels that take {format_seconds(seen.spin_expected)} took "
                f"{format_seconds(seen.spin)}"
            )
            slowed.append(1 - 1 / stretched)
    if seen is not None and seen.highest_bytes_per_second:
        share = seen.copied_bytes_per_second / seen.highest_bytes_per_second
        if share < COPY_SHARE:
            told.append(f"a copy reaches {share:.0%} of what the memory could")
            slowed.append(1 - share / COPY_SHARE)
    if not told:
        return
    if seen is not None and seen.other_processes:
        told.append(f"NVML knows of {seen.other_processes} other processes on this GPU")
    yield Cause(
        code="contention",
        sentence="others use the GPU meanwhile",
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
        sentence=f"the first call takes {format_seconds(first)}, where later ones take "
        f"{format_seconds(usual)}: something is loaded, compiled, searched or built in it",
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
    # Traced calls may have found blocks in PyTorch's cache that those of a loop did not.
    traced = evidence.trace is not None and evidence.trace.allocations >= IN_EACH_CALL
    lost = account.allocating if traced else account.idle
    yield Cause(
        code="allocation",
        sentence="calls ask CUDA for memory, or give it back, in place of PyTorch's cache",
        evidence=(
            f"{calls.allocations:.1f} blocks are asked for and {calls.frees:.1f} given back in "
            "each call",
            f"that takes {format_seconds(lost)} of {format_seconds(account.seconds)}",
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
        f"{format_seconds(trace.copies)} of copies, of which {format_seconds(trace.hidden_copies)} "
        "run beside kernels"
    ]
    if copied:
        told.append(f"{copied / 1e6:,.1f} MB are copied in each call")
    if trace.pageable:
        told.append(
            f"{format_seconds(trace.pageable)} of it are from or to pageable memory, for which the "
            "host waits"
        )
    yield Cause(
        code="transfer",
        sentence=f"copies between host and GPU ({kind} memory) take {format_seconds(lost)} in "
        "which no kernel runs",
        evidence=tuple(told),
        effect=lost / account.seconds,
        confidence=SURE,
    )


def _mapped(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = best_change(evidence, "placement")  # to copies, which lie in the GPU's memory
    if not evidence.work.mapped_bytes or found is None:
        return
    here, _, elsewhere = found
    yield Cause(
        code="transfer",
        sentence=f"kernels read and write the host's memory (mapped) as they run: that takes "
        f"{format_seconds(here.median)}, and on copies in the GPU's memory "
        f"{format_seconds(elsewhere.median)}",
        evidence=(
            f"{evidence.work.mapped_bytes / 1e6:,.1f} MB of its tensors lie in the host's memory",
            *told_of(evidence, "placement"),
        ),
        effect=effect_of(here, elsewhere, account),
        confidence=confidence_in(here, elsewhere),
    )


def _copies_answers(evidence: Evidence) -> bool:
    """Whether all that is copied are numbers that the host waits for."""
    return 0 < evidence.work.copied_bytes < SMALL_COPY


def _synchronisation(evidence: Evidence, account: Account) -> Iterator[Cause]:
    if not _waits_inside(evidence):
        return
    told = []
    if evidence.trace is not None:
        told.append(
            f"the host waits {evidence.trace.waits:.1f} times in each call, "
            f"{format_seconds(evidence.trace.waiting)} in all"
        )
    if evidence.held is not None and _returned_late(evidence):
        told.append(
            f"behind {format_seconds(evidence.held.held)} of other work a call returned after "
            f"{format_seconds(evidence.held.returned)}"
        )
    if evidence.work.held is False:
        told.append("the queue cannot be held: the call waits for the GPU itself")
    # What the host does for memory and copies, in which it also waits, it does without waits, too.
    copying = evidence.trace.copying if evidence.trace and not _copies_answers(evidence) else 0.0
    issuing = _launching(evidence, account) + account.allocating + copying
    without = max(account.busy, issuing)
    yield Cause(
        code="synchronisation",
        sentence="the host waits for the GPU inside of the call, and the GPU then for the host",
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
    """Seconds that the host needs to issue a call, waiting and what belongs to it left out."""
    if evidence.smallest_launch is None or _works_on_host(evidence, account):
        return account.issuing
    if not _waits_inside(evidence):
        return account.issuing
    return min(account.issuing, BARE_LAUNCH * evidence.smallest_launch * account.launches)


def _works_on_host(evidence: Evidence, account: Account) -> bool:
    """Whether the host does more in a call than to launch what it launches."""
    if evidence.smallest_launch is None:
        return False
    launches = max(1.0, account.launches)
    return account.issuing > OWN_WORK * evidence.smallest_launch * launches


def _host(evidence: Evidence, account: Account) -> Iterator[Cause]:
    issuing = _launching(evidence, account)
    stalled = min(account.idle, max(0.0, issuing - account.busy))
    told = [
        f"the host takes {format_seconds(issuing)} to issue {account.launches:.0f} launches, the "
        f"GPU {format_seconds(account.busy)} to run them",
    ]
    graph = evidence.seconds("method", "graph")
    if graph is not None:
        told.append(f"in a CUDA graph a call takes {format_seconds(graph)}")
    if _works_on_host(evidence, account):
        code: CauseCode = "host-bound"
        sentence = "the GPU waits for work of the host's own between launches"
    else:
        code = "launch-bound"
        sentence = "the GPU waits for launches: its kernels are shorter than it takes to issue them"
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
        told.append(f"cold, {read:,.1f} MB are read of the GPU's memory, {written:,.1f} written")
    yield Cause(
        code="cache",
        sentence=f"what the call finds in the cache decides: {slow} it takes "
        f"{format_seconds(slower.median)}, {fast} {format_seconds(faster.median)}",
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
                sentence=f"under lasting load it takes {format_seconds(sustained.median)}, where a "
                f"rested GPU takes {format_seconds(burst.median)}: power lowers the clock",
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
            sentence=f"the GPU's clock is {share:.0%} of its highest: it is locked, capped, hot, "
            "or draws all the power that it may",
            evidence=(f"{seen.clock_hz / 1e6:.0f} of {highest / 1e6:.0f} MHz",),
            effect=(1 - share) * min(1.0, seen.median / account.seconds),
            confidence=POSSIBLE,
        )


def _placement(evidence: Evidence, account: Account) -> Iterator[Cause]:
    if evidence.work.mapped_bytes:  # whose copies lie in other memory, and not at other addresses
        return
    found = best_change(evidence, "placement")
    if found is not None:
        here, _, elsewhere = found
        yield Cause(
            code="placement",
            sentence=f"the tensors lie where the call takes {format_seconds(here.median)}; at "
            f"other addresses it takes {format_seconds(elsewhere.median)}",
            evidence=told_of(evidence, "placement"),
            effect=effect_of(here, elsewhere, account),
            confidence=confidence_in(here, elsewhere),
        )
        return
    spread, share = evidence.work.place_spread, evidence.work.place_share
    if spread is not None and share is not None and share >= 0.5:
        yield Cause(
            code="placement",
            sentence=f"addresses alone move its time by {spread:.1%}",
            evidence=(f"{share:.0%} of the samples' variance is between places",),
            effect=spread / 2 * min(1.0, evidence.work.seconds / account.seconds),
            confidence=LIKELY,
        )


def _layout(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = best_change(evidence, "layout")
    told = list(told_of(evidence, "layout"))
    if evidence.work.conversion > 0:
        told.append(f"{format_seconds(evidence.work.conversion)} are conversions between layouts")
    read, given = evidence.counters.get(BYTES_READ), evidence.work.tensor_bytes
    wasteful = _reads_in_vain(evidence)
    if read and wasteful:
        told.append(
            f"one kernel reads {read / 1e6:,.1f} MB of the GPU's memory, and its tensors have "
            f"{given / 1e6:,.1f} MB of numbers"
        )
    if found is not None:
        here, name, best = found
        yield Cause(
            code="layout",
            sentence=f"the tensors lie in memory so that the call takes "
            f"{format_seconds(here.median)}; {name} it takes {format_seconds(best.median)}",
            evidence=tuple(told),
            effect=effect_of(here, best, account),
            confidence=confidence_in(here, best),
        )
    elif read and wasteful:
        yield Cause(
            code="layout",
            sentence="accesses to memory are not coalesced: most of what is read is not used",
            evidence=tuple(told),
            effect=(1 - given / read) * min(1.0, evidence.work.seconds / account.seconds),
            confidence=POSSIBLE,
        )


def _reads_in_vain(evidence: Evidence) -> bool:
    """Whether one kernel reads much more than its tensors hold, at the rate of the memory."""
    read, work = evidence.counters.get(BYTES_READ), evidence.work
    highest = evidence.neighbours.highest_bytes_per_second if evidence.neighbours else None
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
    if constant:  # what they are given is the exception, and random numbers are the rule
        others = {name: each for name, each in others.items() if name == "random"} or others
    name, other = max(others.items(), key=lambda entry: abs(entry[1].median - given.median))
    slower, faster = sorted((given, other), key=lambda each: each.median, reverse=True)
    # Numbers that draw less power let the clock rise: of usual ones, that is the clock's doing.
    yield Cause(
        code="data",
        sentence=f"the numbers decide: as given it takes {format_seconds(given.median)}, with "
        f"{name} {format_seconds(other.median)}",
        evidence=(
            *told_of(evidence, "data"),
            *(["what it is given is constant, or largely NaN or denormal"] if constant else []),
        ),
        effect=effect_of(slower, faster, account, in_cycles=not constant),
        confidence=confidence_in(slower, faster),
    )


def _process(evidence: Evidence, account: Account) -> Iterator[Cause]:
    times = dict(evidence.contrasts.get("process", {}))
    if len(times) < 2:
        return
    if not evidence.on_gpu:
        # A CPU's times change while a process runs, too: these were taken at other moments.
        alike = (("threads", "as-is"), ("placement", "as-is"), ("pages", "retained"))
        here = [evidence.timing(*each) for each in alike]
        times["here"] = Timing.joined([times["here"], *(each for each in here if each)])
    (slow, slower), (fast, faster) = extremes(times)
    yield Cause(
        code="process",
        sentence=f"{slow} it takes {format_seconds(slower.median)}, {fast} "
        f"{format_seconds(faster.median)}: something belongs to the process",
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
