"""Evidence of a call that nothing is wrong with, by hand; tests change what they are about."""

import dataclasses

from convtime.diagnosis.evidence import (
    Calls,
    Evidence,
    Held,
    Neighbors,
    Serialized,
    Timing,
    Trace,
    Work,
)

US = 1e-6


def timing(microseconds, clock_mhz=None, width=0.01):
    """A time whose interval is a hundredth of it, each way."""
    median = microseconds * US
    return Timing(
        median, (1 - width) * median, (1 + width) * median, 0.002, 30,
        None if clock_mhz is None else clock_mhz * 1e6,
    )  # fmt: skip


def times(**conditions):
    return {name.replace("_", " "): timing(each) for name, each in conditions.items()}


# A kernel of 100 µs, issued in 8 µs: as fast as it can be.
CALLS = Calls(
    first=(300 * US, 120 * US, 118 * US),
    loop=timing(101),
    waiting=timing(112),
    issuing=8 * US,
    mean=101 * US,
    fewest=100 * US,
)
WORK = Work(
    seconds=100 * US,
    span=100 * US,
    mean=100 * US,
    fewest=99 * US,
    kernels=1,
    held=True,
    highest_clock_hz=1980e6,
)
TRACE = Trace(
    calls=10,
    busy=100 * US,
    kernels=100 * US,
    copies=0.0,
    hidden_copies=0.0,
    pageable=0.0,
    pinned=0.0,
    launches=1.0,
    waits=0.0,
    waiting=0.0,
    allocations=0.0,
    allocating=0.0,
    copying=0.0,
    issuing=10 * US,
)
CONTRASTS = {
    "cache": {"cold": timing(101), "cold-clean": timing(100), "warm": timing(99.5)},
    "placement": {"as-is": timing(100), "moved": timing(100.5)},
    "regime": {"burst": timing(100, 1980), "sustained": timing(101, 1970)},
    "data": {"as given": timing(100), "zeros": timing(99.5), "random": timing(100)},
}
CLEAN = Evidence(
    on_gpu=True,
    calls=CALLS,
    work=WORK,
    contrasts=CONTRASTS,
    trace=TRACE,
    serialized=Serialized(repeats=True, calls=4, differing=0),
    held=Held(0.02, 10 * US),
    neighbors=Neighbors(8.04e-3, 8.1e-3, 4.3e12, 4.8e12, other_processes=0),
    smallest_launch=7 * US,
)


def but(evidence=CLEAN, contrasts=None, **changes):
    """The evidence with other fields; fields of its parts are changed by a dict of them."""
    made = {
        name: dataclasses.replace(getattr(evidence, name), **change)
        if isinstance(change, dict) and name != "counters"
        else change
        for name, change in changes.items()
    }
    return dataclasses.replace(
        evidence, contrasts={**evidence.contrasts, **(contrasts or {})}, **made
    )
