"""Compute where a call's time goes, from the evidence alone."""

from __future__ import annotations

from collections.abc import Mapping

from convtime.diagnosis.diagnosis import Account
from convtime.diagnosis.evidence import Evidence

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
    trace = evidence.trace
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
            issuing=evidence.calls.issuing,
            waiting=0.0,
            allocating=0.0,
            launches=float(evidence.work.kernels + evidence.work.copies),
        )
    busy = min(seconds, trace.busy)
    issuing = evidence.calls.issuing
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
