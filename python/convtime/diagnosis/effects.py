"""Where a call's time goes, and the effect and confidence of causes; from the evidence alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from convtime.diagnosis.diagnosis import Account, Cause, CauseCode
from convtime.diagnosis.evidence import Evidence, Timing
from convtime.view.wording import format_seconds

#: Least number of cores used by other threads of the process that matters.
BACKGROUND_CORES = 0.2
#: States of a call's thread that block it, in words; keys are fields of Waits.
BLOCKED: Mapping[str, str] = {
    "sleeping": "it sleeps",
    "files": "it waits for a file, a pipe or a socket",
    "pages": "it waits for pages from a disk",
    "processes": "it waits for another process",
    "locks": "it waits for a lock that no running thread of this process holds",
}


def account_of(evidence: Evidence) -> Account:
    """Add up the device's and the host's times in one call of a plain loop."""
    seconds = evidence.calls.loop.median
    issuing, trace = evidence.calls.issuing, evidence.trace
    if not evidence.on_gpu:
        return _of_cpu(evidence)
    if trace is None:
        warm = evidence.seconds("cache", "warm")  # as in a loop
        busy = min(seconds, evidence.work.seconds if warm is None else warm)
        return Account(
            seconds=seconds,
            busy=busy,
            idle=seconds - busy,
            copies=0.0,
            issuing=issuing,
            waiting=0.0,
            allocating=0.0,
            launches=float(evidence.work.kernels + evidence.work.copies),
        )
    busy = min(seconds, trace.busy)
    if trace.waiting + trace.allocating + trace.copying > 0.1 * issuing:
        # The issuing time includes waits. Only the profiler, which has overhead, separates the two.
        issuing = min(issuing, trace.issuing)
    return Account(
        seconds=seconds,
        busy=busy,
        idle=seconds - busy,
        copies=trace.copies - trace.hidden_copies,
        issuing=issuing,
        waiting=trace.waiting,
        allocating=trace.allocating,
        launches=trace.launches,
    )


def _of_cpu(evidence: Evidence) -> Account:
    """Return the account on a CPU; readings of other calls are scaled to the loop's call time."""
    seconds, host, operators = evidence.calls.loop.median, evidence.host, evidence.operators
    waiting = (1 - min(1.0, evidence.calls.running)) * seconds
    queued = throttled = faulting = kernel = interpreting = dispatching = 0.0
    if host is not None:
        if host.waits is not None:
            waiting = min(seconds, host.waits.seconds * host.waits.share(*BLOCKED))
        scale = seconds / host.seconds
        throttled = min(seconds, scale * (host.throttled or 0.0))
        # A thread that a quota stops also counts as waiting for a core.
        queued = min(seconds - throttled, max(0.0, scale * (host.longest_wait or 0.0) - throttled))
        threads = max(1.0, host.threads or 1.0)
        kernel = min(seconds, scale * host.kernel / threads)
        faulting = min(kernel, scale * host.minor_faults * host.fault_seconds / threads)
    if operators is not None:
        inside = min(1.0, operators.seconds / operators.loop)
        behind = 0.0
        if host is not None and host.waits is not None and host.background >= BACKGROUND_CORES:
            behind = host.waits.seconds * host.waits.share("other_threads")
        own = max(0.0, seconds - waiting - queued - throttled - behind)
        # Kernel time outside operators, such as mapping memory, is not interpreter time.
        interpreting = max(0.0, own - inside * seconds - (1 - inside) * kernel)
        dispatching = min(own - interpreting, operators.dispatching)
    return Account(
        seconds=seconds,
        busy=seconds,
        idle=0.0,
        copies=0.0,
        issuing=seconds - waiting,
        waiting=waiting,
        allocating=0.0,
        launches=0.0,
        queued=queued,
        throttled=throttled,
        faulting=faulting,
        interpreting=interpreting,
        dispatching=dispatching,
    )


#: A function that looks for one cause, and returns it or None.
Rule = Callable[[Evidence, Account], Cause | None]

SURE, LIKELY, POSSIBLE = 0.95, 0.75, 0.5

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

#: By cause: the contrast that varies its conditions.
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


def extremes(times: Mapping[str, Timing]) -> tuple[tuple[str, Timing], tuple[str, Timing]]:
    """Return the slowest and the fastest of several conditions."""
    fastest_first = sorted(times.items(), key=lambda entry: entry[1].median)
    return fastest_first[-1], fastest_first[0]


def by_contrast(
    code: CauseCode,
    sentence: str,
    evidence: Iterable[str],
    account: Account,
    slower: Timing,
    faster: Timing,
    *,
    in_cycles: bool = True,
) -> Cause:
    """Return a cause whose effect and confidence are those of the difference of two times."""
    return Cause(
        code=code,
        sentence=sentence,
        evidence=tuple(evidence),
        effect=effect_of(slower, faster, account, in_cycles=in_cycles),
        confidence=confidence_in(slower, faster),
    )


def by_change(
    code: CauseCode,
    sentence: str,
    observed: Iterable[str],
    evidence: Evidence,
    account: Account,
    contrast: str,
) -> Cause | None:
    """Return the cause that the fastest change of a contrast shows; None if none is faster.

    Args:
        code: code of the cause.
        sentence: format of its sentence; ``{here}`` is the time ``as-is``, ``{name}`` the change,
            and ``{best}`` the time with the change.
        observed: its evidence.
        evidence: all observations.
        account: breakdown of a call's time.
        contrast: name of the contrast.
    """
    here = evidence.timing(contrast, "as-is")
    if here is None:
        return None
    name, best = extremes(evidence.contrasts[contrast])[1]
    if best.median >= here.median:
        return None
    sentence = sentence.format(
        here=format_seconds(here.median), name=name, best=format_seconds(best.median)
    )
    return by_contrast(code, sentence, observed, account, here, best)


def effect_of(slower: Timing, faster: Timing, account: Account, *, in_cycles: bool = True) -> float:
    """Return the difference as a share of a call's time, without the effect of different clocks."""
    share = 1 - faster.median / slower.median if slower.median > 0 else 0.0
    if in_cycles and slower.cycles and faster.cycles:
        share = min(share, 1 - faster.cycles / slower.cycles)
    share = min(max(0.0, share), 1.0)
    return share * min(1.0, slower.median / max(account.seconds, 1e-12))


def confidence_in(slower: Timing, faster: Timing) -> float:
    """Return the confidence in the difference, based on the two intervals."""
    if slower.low is None or faster.high is None:
        return POSSIBLE
    # Not a ratio: the faster time is 0 if it issues no GPU work.
    apart = slower.low - faster.high
    if apart <= 0:
        return 0.0
    return SURE if apart > (slower.median - faster.median) / 2 else LIKELY


def applicable(*sentences: object) -> tuple[str, ...]:
    """Return the sentences; an argument that is no string is a condition that was not met."""
    return tuple(each for each in sentences if isinstance(each, str))


def times_in_words(evidence: Evidence, contrast: str) -> tuple[str, ...]:
    """Return a contrast's times as one sentence; none if it was not examined."""
    times = evidence.contrasts.get(contrast, {})
    words = ", ".join(f"{name} {format_seconds(each.median)}" for name, each in times.items())
    return (f"{contrast}: {words}",) if words else ()


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
