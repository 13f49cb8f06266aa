"""Rules for causes of a call's time on a CPU; pure functions, as in rules.py."""

from __future__ import annotations

import dataclasses
from typing import Final

from convtime.diagnosis.diagnosis import Account, Cause
from convtime.diagnosis.effects import (
    BACKGROUND_CORES,
    BLOCKED,
    LIKELY,
    POSSIBLE,
    SURE,
    Rule,
    applicable,
    by_change,
    times_in_words,
)
from convtime.diagnosis.evidence import Evidence, Host
from convtime.view.wording import format_seconds

#: Least number of cores used by other processes that matters.
OTHERS_CORES: Final = 0.2
#: Samples of a thread that are enough to identify the reason of its waits.
ENOUGH_LOOKS: Final = 200
#: Share of a call's time. Without samples, a call counts as waiting if it is ready to run for less.
READY: Final = 0.5
#: Least number of page faults in a call that can be a cause.
FAULTS: Final = 4
#: As a share of the clock after a rest.
LOADED_CLOCK: Final = 0.90
#: Share of the tensors' pages on another NUMA node.
REMOTE: Final = 0.5


def ready_threads(host: Host) -> float:
    """Return the average number of threads of the process that run or wait for a core."""
    return (host.cpu + (host.waiting or 0.0)) / host.seconds


def of_others(host: Host) -> float:
    """Return the share of waits for a core that other processes cause."""
    others = host.others or 0.0
    if others < OTHERS_CORES:
        return 0.0
    own = max(0.0, ready_threads(host) - host.cores)
    return others / (others + own)


def _contention(evidence: Evidence, account: Account) -> Cause | None:
    host = evidence.host
    if host is None or not of_others(host):
        return None
    longest = host.longest_wait
    return Cause(
        code="contention",
        sentence="other processes occupy cores that the call could use",
        evidence=applicable(
            f"other processes used {host.others:.1f} of {host.cores:.0f} cores during the run",
            longest is not None
            and f"a thread of the call waited for a core for {format_seconds(longest)} of "
            f"{format_seconds(host.seconds)}",
        ),
        effect=of_others(host) * account.queued / account.seconds,
        confidence=LIKELY if longest is None else SURE,
    )


def _quota(evidence: Evidence, account: Account) -> Cause | None:
    host = evidence.host
    if host is None or not account.throttled:
        return None
    return Cause(
        code="quota",
        sentence="a cgroup's CPU quota stops the process until its next period",
        evidence=(
            f"it was stopped for {format_seconds(account.throttled)} of "
            f"{format_seconds(host.seconds)} in each call, on average (cpu.stat)",
        ),
        effect=account.throttled / account.seconds,
        confidence=SURE,
    )


def _blocking(evidence: Evidence, account: Account) -> Cause | None:
    waits, asleep = evidence.host.waits if evidence.host else None, 1 - evidence.calls.running
    sentence, confidence = "the call waits without computing", LIKELY
    if waits is not None:
        shares = {name: waits.share(name) for name in BLOCKED}
        sentence += f": {BLOCKED[max(shares, key=lambda name: shares[name])]}"
        seen = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.01)
        observed = f"{waits.looks:,} samples of its thread: {seen or 'none'}"
        if waits.looks >= ENOUGH_LOOKS:
            confidence = SURE
    elif asleep > 1 - READY:
        observed = f"for {asleep:.0%} of its time no thread of the process is ready to run"
    else:
        return None
    return Cause(
        code="blocking",
        sentence=sentence,
        evidence=(observed,),
        effect=account.waiting / account.seconds,
        confidence=confidence,
    )


def _threads(evidence: Evidence, account: Account) -> Cause | None:
    host = evidence.host
    queued = (1 - of_others(host)) * account.queued / account.seconds if host else 0.0
    if host is not None and host.background >= BACKGROUND_CORES:
        behind = host.waits.share("other_threads") if host.waits else 0.0
        return Cause(
            code="threads",
            sentence="other threads of this process compute, and the call waits for them",
            evidence=(
                f"they used {host.background:.1f} cores while the calling thread slept",
                f"the calling thread waited for another thread for {behind:.0%} of its time, and a "
                f"thread waited for a core for {queued:.0%}",
            ),
            effect=max(queued, behind),
            confidence=SURE,
        )
    crowded = host is not None and ready_threads(host) > host.cores + 0.5
    observed = applicable(
        *times_in_words(evidence, "threads"),
        host is not None
        and crowded
        and f"{ready_threads(host):.1f} threads ran or waited for one of {host.cores:.0f} cores",
    )
    sentence = (
        "PyTorch's threads slow each other down: the call takes {here}, but {best} with {name}"
    )
    fewer = by_change("threads", sentence, observed, evidence, account, "threads")
    if not crowded or (fewer is not None and fewer.confidence):
        return fewer
    return Cause(
        code="threads",
        sentence="the call has more threads than cores, so its threads wait for each other",
        evidence=observed,
        effect=queued,
        confidence=LIKELY,
    )


def _memory(evidence: Evidence, account: Account) -> Cause | None:
    """Page faults of newly mapped memory, or another cost of returning and requesting memory."""
    host = evidence.host
    faults = host.minor_faults if host else 0.0
    observed = applicable(
        *times_in_words(evidence, "pages"),
        host is not None
        and faults >= FAULTS
        and f"each call touches {faults:,.0f} pages for the first time, which takes "
        f"{format_seconds(host.fault_seconds)} per page here",
    )
    faulting = account.faulting / account.seconds
    sentence = (
        "each call maps new memory and takes {here}; with memory that is already mapped, it takes "
        "{best}"
    )
    retained = by_change("page-faults", sentence, observed, evidence, account, "pages")
    if retained is not None and retained.confidence:
        if faults >= FAULTS and faulting >= retained.effect / 3:
            return dataclasses.replace(retained, effect=max(retained.effect, faulting))
        sentence = "each call requests memory from the system and returns it"
        return dataclasses.replace(retained, code="allocation", sentence=sentence)
    if faults < FAULTS:
        return None
    return Cause(
        code="page-faults",
        sentence="the call touches newly mapped memory, one page at a time",
        evidence=observed,
        effect=faulting,
        confidence=LIKELY,
    )


def _python(evidence: Evidence, account: Account) -> Cause | None:
    seen = evidence.operators
    if seen is None:
        return None
    python, dispatch = account.interpreting, account.dispatching
    most = "Python" if python >= dispatch else "calling PyTorch's operators"
    return Cause(
        code="python-overhead",
        sentence=f"most of the time goes into {most}, not into computing: "
        f"{format_seconds(python)} are outside PyTorch's operators, and "
        f"{format_seconds(dispatch)} are the fixed overhead of {seen.count:,.0f} operators",
        evidence=(
            f"its operators take {format_seconds(seen.seconds)} of "
            f"{format_seconds(account.seconds)}, and the smallest possible operator "
            f"{format_seconds(seen.smallest)}",
        ),
        effect=min(1.0, (python + dispatch) / account.seconds),
        confidence=SURE,
    )


def _denormals(evidence: Evidence, account: Account) -> Cause | None:
    sentence = (
        "it computes with denormal values: with one thread, it takes {here}, but {best} if these "
        "are flushed to 0"
    )
    observed = times_in_words(evidence, "denormals")
    return by_change("denormals", sentence, observed, evidence, account, "denormals")


def _numa(evidence: Evidence, account: Account) -> Cause | None:
    share = evidence.host.remote_share if evidence.host else None
    if share is None or share < REMOTE:
        return None
    sentence = (
        "its tensors are in the memory of another NUMA node: it takes {here}, but {best} on copies "
        "made by this thread"
    )
    observed = (
        f"{share:.0%} of their pages are on another node than the thread",
        *times_in_words(evidence, "placement"),
    )
    return by_change("numa", sentence, observed, evidence, account, "placement")


def _clock(evidence: Evidence, account: Account) -> Cause | None:  # noqa: ARG001
    host = evidence.host
    if host is None or not host.rested_hz or not host.loaded_hz:
        return None
    share = host.loaded_hz / host.rested_hz
    if share >= LOADED_CLOCK:
        return None
    return Cause(
        code="clock",
        sentence=f"the core's clock is {share:.0%} of its clock after a rest",
        evidence=(f"{host.loaded_hz / 1e9:.2f} and {host.rested_hz / 1e9:.2f} GHz",),
        effect=1 - share,
        confidence=POSSIBLE,
    )


RULES: tuple[Rule, ...] = (
    _contention,
    _quota,
    _blocking,
    _threads,
    _memory,
    _python,
    _denormals,
    _numa,
    _clock,
)
