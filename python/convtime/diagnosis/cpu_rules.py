"""Rules for causes of a call's time on a CPU; pure functions, as in rules.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from convtime.core.units import format_seconds
from convtime.diagnosis.account import BACKGROUND_CORES
from convtime.diagnosis.diagnosis import Account, Cause
from convtime.diagnosis.evidence import Evidence, Host
from convtime.diagnosis.weighing import (
    LIKELY,
    POSSIBLE,
    SURE,
    Rule,
    best_change,
    confidence_in,
    effect_of,
    told_of,
)

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

_BLOCKED: Final = {
    "sleeping": "it sleeps",
    "files": "it waits for a file, a pipe or a socket",
    "pages": "it waits for pages from a disk",
    "processes": "it waits for another process",
    "locks": "it waits for a lock that no running thread of this process holds",
}


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


def _contention(evidence: Evidence, account: Account) -> Iterator[Cause]:
    host = evidence.host
    if host is None or not of_others(host):
        return
    told = [f"other processes used {host.others:.1f} of {host.cores:.0f} cores during the run"]
    if host.longest_wait is not None:
        told.append(
            f"a thread of the call waited for a core for {format_seconds(host.longest_wait)} of "
            f"{format_seconds(host.seconds)}"
        )
    yield Cause(
        code="contention",
        sentence="other processes occupy cores that the call could use",
        evidence=tuple(told),
        effect=of_others(host) * account.queued / account.seconds,
        confidence=SURE if host.longest_wait is not None else LIKELY,
    )


def _quota(evidence: Evidence, account: Account) -> Iterator[Cause]:
    host = evidence.host
    if host is None or not account.throttled:
        return
    yield Cause(
        code="quota",
        sentence="a cgroup's CPU quota stops the process until its next period",
        evidence=(
            f"it was stopped for {format_seconds(account.throttled)} of "
            f"{format_seconds(host.seconds)} in each call, on average (cpu.stat)",
        ),
        effect=account.throttled / account.seconds,
        confidence=SURE,
    )


def _blocking(evidence: Evidence, account: Account) -> Iterator[Cause]:
    waits = evidence.host.waits if evidence.host else None
    if waits is None:
        if evidence.calls.running < READY:
            yield Cause(
                code="blocking",
                sentence="the call waits without computing",
                evidence=(
                    f"for {1 - evidence.calls.running:.0%} of its time no thread of the process is "
                    "ready to run",
                ),
                effect=account.waiting / account.seconds,
                confidence=LIKELY,
            )
        return
    shares = {name: waits.share(name) for name in _BLOCKED}
    most = max(shares, key=lambda name: shares[name])
    told = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.01)
    yield Cause(
        code="blocking",
        sentence=f"the call waits without computing: {_BLOCKED[most]}",
        evidence=(f"{waits.looks:,} samples of its thread: {told or 'none'}",),
        effect=account.waiting / account.seconds,
        confidence=SURE if waits.looks >= ENOUGH_LOOKS else LIKELY,
    )


def _threads(evidence: Evidence, account: Account) -> Iterator[Cause]:
    host = evidence.host
    if host is not None and host.background >= BACKGROUND_CORES:
        behind = host.waits.share("other_threads") if host.waits else 0.0
        queued = (1 - of_others(host)) * account.queued / account.seconds
        yield Cause(
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
        return
    found = best_change(evidence, "threads")
    told = list(told_of(evidence, "threads"))
    crowded = host is not None and ready_threads(host) > host.cores + 0.5
    if host is not None and crowded:
        told.append(
            f"{ready_threads(host):.1f} threads ran or waited for one of {host.cores:.0f} cores"
        )
    if found is not None and confidence_in(found[0], found[2]):
        here, name, best = found
        yield Cause(
            code="threads",
            sentence=f"PyTorch's threads slow each other down: the call takes "
            f"{format_seconds(here.median)}, but {format_seconds(best.median)} with {name}",
            evidence=tuple(told),
            effect=effect_of(here, best, account),
            confidence=confidence_in(here, best),
        )
    elif host is not None and crowded:
        yield Cause(
            code="threads",
            sentence="the call has more threads than cores, so its threads wait for each other",
            evidence=tuple(told),
            effect=(1 - of_others(host)) * account.queued / account.seconds,
            confidence=LIKELY,
        )


def _memory(evidence: Evidence, account: Account) -> Iterator[Cause]:
    """Page faults of newly mapped memory, or another cost of returning and requesting memory."""
    host, found = evidence.host, best_change(evidence, "pages")
    faults = host.minor_faults if host else 0.0
    told = [*told_of(evidence, "pages")]
    if host is not None and faults >= FAULTS:
        told.append(
            f"each call touches {faults:,.0f} pages for the first time, which takes "
            f"{format_seconds(host.fault_seconds)} per page here"
        )
    faulting = account.faulting / account.seconds
    if found is not None and confidence_in(found[0], found[2]):
        here, _, retained = found
        effect, confidence = effect_of(here, retained, account), confidence_in(here, retained)
        if faults < FAULTS or faulting < effect / 3:
            yield Cause(
                code="allocation",
                sentence="each call requests memory from the system and returns it",
                evidence=tuple(told),
                effect=effect,
                confidence=confidence,
            )
            return
        yield Cause(
            code="page-faults",
            sentence=f"each call maps new memory and takes {format_seconds(here.median)}; with "
            f"memory that is already mapped, it takes {format_seconds(retained.median)}",
            evidence=tuple(told),
            effect=max(effect, faulting),
            confidence=confidence,
        )
    elif faults >= FAULTS:
        yield Cause(
            code="page-faults",
            sentence="the call touches newly mapped memory, one page at a time",
            evidence=tuple(told),
            effect=faulting,
            confidence=LIKELY,
        )


def _python(evidence: Evidence, account: Account) -> Iterator[Cause]:
    seen = evidence.operators
    if seen is None:
        return
    python, dispatch = account.interpreting, account.dispatching
    most = "Python" if python >= dispatch else "calling PyTorch's operators"
    yield Cause(
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


def _denormals(evidence: Evidence, account: Account) -> Iterator[Cause]:
    found = best_change(evidence, "denormals")
    if found is None:
        return
    here, _, flushed = found
    yield Cause(
        code="denormals",
        sentence=f"it computes with denormal values: with one thread, it takes "
        f"{format_seconds(here.median)}, but {format_seconds(flushed.median)} if these are flushed "
        "to 0",
        evidence=told_of(evidence, "denormals"),
        effect=effect_of(here, flushed, account),
        confidence=confidence_in(here, flushed),
    )


def _numa(evidence: Evidence, account: Account) -> Iterator[Cause]:
    host, found = evidence.host, best_change(evidence, "placement")
    if host is None or host.remote_share is None or found is None or host.remote_share < REMOTE:
        return
    here, _, near = found
    yield Cause(
        code="numa",
        sentence=f"its tensors are in the memory of another NUMA node: it takes "
        f"{format_seconds(here.median)}, but {format_seconds(near.median)} on copies made by this "
        "thread",
        evidence=(
            f"{host.remote_share:.0%} of their pages are on another node than the thread",
            *told_of(evidence, "placement"),
        ),
        effect=effect_of(here, near, account),
        confidence=confidence_in(here, near),
    )


def _clock(evidence: Evidence, account: Account) -> Iterator[Cause]:  # noqa: ARG001
    host = evidence.host
    if host is None or not host.rested_hz or not host.loaded_hz:
        return
    share = host.loaded_hz / host.rested_hz
    if share < LOADED_CLOCK:
        yield Cause(
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
