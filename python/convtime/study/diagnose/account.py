"""Where the time of a call goes, from the evidence alone."""

from __future__ import annotations

from convtime.results.diagnosis import Account
from convtime.results.evidence import Evidence


def account_of(evidence: Evidence) -> Account:
    """Adds up what the device and the host do in a call of a plain loop."""
    seconds = evidence.calls.loop.median
    trace = evidence.trace
    if not evidence.on_gpu:
        waiting = (1 - min(1.0, evidence.calls.running)) * seconds
        return Account(seconds, seconds, 0.0, 0.0, seconds - waiting, waiting, 0.0, 0.0)
    busy = min(seconds, _busy(evidence))
    if trace is None:
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
    issuing = evidence.calls.issuing
    if trace.waiting + trace.allocating + trace.copying > 0.1 * issuing:
        # What the host waits for is part of it: the profiler, which has a cost, tells it apart.
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


def _busy(evidence: Evidence) -> float:
    """Seconds of a call's work on the device, in the cache's state of a loop."""
    if evidence.trace is not None:
        return evidence.trace.busy
    warm = evidence.seconds("cache", "warm")
    return evidence.work.seconds if warm is None else warm
