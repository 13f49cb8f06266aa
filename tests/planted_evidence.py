"""What a diagnosis might see of each case of diagnose.py on an H200, where a plant is hard to find.

By hand: from durations that were measured there where they were (of launches, matmuls, copies), and
guessed where they were not. A GPU's own evidence is in the rows that the benchmark writes.
"""

from clean_evidence import CLEAN, US, but, times, timing

from convtime.results.evidence import Held

IDLE = but(CLEAN, smallest_launch=10.8 * US)
WAITING = {"held": Held(0.02, 0.0201)}


def called(loop, issuing=12, **more):
    return {"loop": timing(loop), "issuing": issuing * US, "waiting": timing(loop + 12), **more}


def seconds(**microseconds):
    return {name: each * US for name, each in microseconds.items()}


def running(busy, launches=1, **microseconds):
    """A trace of kernels alone, unless it is said otherwise."""
    return {"launches": float(launches), **seconds(busy=busy, kernels=busy, **microseconds)}


def small(**more):
    """Of a call that leaves the GPU idle: no regime, and other contrasts of short kernels."""
    found = but(IDLE, **more)
    kept = {name: each for name, each in found.contrasts.items() if name == "cache"}
    return but(found, contrasts={"regime": {}, "placement": {}, "data": {}} | kept)


def large(microseconds, contrasts=None, **more):
    """Of a call that is one kernel, which nothing but what is given changes."""
    usual = {
        "cache": {
            "cold": timing(1.01 * microseconds),
            "cold-clean": timing(0.985 * microseconds),
            "warm": timing(microseconds),
            "rotated": timing(1.005 * microseconds),
        },
        "placement": {"as-is": timing(microseconds), "moved": timing(0.996 * microseconds)},
        "regime": {
            "burst": timing(microseconds, 1978),
            "sustained": timing(1.003 * microseconds, 1970),
        },
        "data": {
            name: timing(share * microseconds, 1975)
            for name, share in (("as given", 1), ("zeros", 0.985), ("random", 1))
        },
    }
    made = {
        "calls": called(microseconds + 1),
        "trace": running(microseconds),
        "work": seconds(seconds=microseconds, union=microseconds, span=microseconds),
    }
    for name, change in more.items():
        made[name] = made.get(name, {}) | change if isinstance(change, dict) else change
    return but(IDLE, contrasts=usual | (contrasts or {}), **made)


def copied(loop, copies, busy, kind, **more):
    return small(
        calls=called(loop, loop - 10 if kind == "pageable" else 14),
        trace=running(busy, 2, copies=copies, **{kind: copies}, **more)
        | seconds(kernels=busy - copies)
        | ({"waits": 1.0, "waiting": 5 * US} if kind == "pageable" else {}),
        work={"copies": 1, "copied_bytes": 4 << 20, "held": kind == "pinned"},
    )


THREAD = {"other_launches": 0.8}
SHARED = {"spin": 16e-3, "copied_bytes_per_second": 2.1e12}
# Of a matmul of 4096 in bf16, whose cycles are the same while the clock falls.
HOT = {
    "regime": {"burst": timing(165, 1696), "sustained": timing(199, 1400)},
    "data": {
        "as given": timing(195, 1410),
        "zeros": timing(168, 1650),
        "random": timing(195, 1410),
    },
    "cache": {"cold": timing(180, 1550), "warm": timing(196, 1405)},
}

SEEN = {
    "host: sleep": small(calls=called(570, 565), trace=running(48)),
    "host: Python": small(calls=called(900, 890), trace=running(100)),
    # 3 kernels, before each of which the host adds up 8,000 numbers
    "host: between kernels": small(calls=called(255, 255), trace=running(54, 3)),
    "launch: tiny kernels": small(calls=called(180, 185), trace=running(20, 20)),
    "launch: tiny optimizer": small(calls=called(170, 172), trace=running(20, 20)),
    # 17 kernels, a part of them from another thread, which autograd wakes
    "launch: tiny training": small(calls=called(520, 540), trace=running(34, 17), serialised=None),
    "synchronisation: item": small(
        calls=called(81, 80),
        trace=running(15, 6, waiting=20, copying=12, copies=6, issuing=75)
        | seconds(kernels=9)
        | {"waits": 3.0},
        work={"copies": 3, "copied_bytes": 12, "held": False},
        serialised=None,
        **WAITING,
    ),
    "synchronisation: synchronize": small(
        calls=called(60, 58),
        trace=running(21, 3, waiting=24, issuing=40) | {"waits": 3.0},
        contrasts={"cache": times(cold=30, warm=21)},
        work={"held": False},
        **WAITING,
    ),
    "synchronisation: mask": small(
        calls=called(150, 148),
        trace=running(80, 14, waiting=40, copying=20, copies=4, issuing=110)
        | seconds(kernels=76)
        | {"waits": 2.0},
        work={"copies": 2, "copied_bytes": 16, "held": False},
        **WAITING,
    ),
    "missing wait: for a result": large(150, serialised={"differing": 4, "largest_error": 3.0}),
    "missing wait: for an input": large(150, serialised={"differing": 2, "largest_error": 3.0}),
    # which waits for the device before it gives memory back
    "allocation: emptied cache": small(
        calls=called(900, 880, allocations=1.0, frees=1.0),
        trace=running(20, waiting=60, allocating=700, issuing=60)
        | {"allocations": 2.0, "waits": 1.0},
        work={"held": False},
        **WAITING,
    ),
    "allocation: growing": small(
        calls=called(420, 350, allocations=1.0, frees=1.0),
        trace=running(45, allocating=260, issuing=25) | {"allocations": 1.0},
    ),
    "first call: compiled": large(130, calls={"first": (0.7, 150 * US, 148 * US)}),
    "first call: searched": large(
        250,
        {
            "regime": {"burst": timing(215, 1580), "sustained": timing(262, 1290)},
            "layout": {"as-is": timing(250, 1400), "contiguous": timing(390, 1400)},
        },
        calls={"first": (0.9, 262 * US, 260 * US)},
    ),
    "first call: built": large(128, calls={"first": (0.3, 142 * US, 141 * US)}),
    # in graphs, of short kernels with gaps between them
    "cache: negation": small(
        calls=called(22, 15),
        trace=running(14.4),
        contrasts={"cache": times(cold=26, cold_clean=22, warm=14.4)},
        work={"kernels": 8},
        serialised=None,
    ),
    "cache: addition": small(
        calls=called(20, 14),
        trace=running(14),
        contrasts={"cache": times(cold=19, cold_clean=17, warm=14)},
        work={"kernels": 4},
        serialised=None,
    ),
    "clock: matmul": large(190, HOT),
    "clock: batched matmul": large(190, HOT, work={"kernels": 1}),
    "placement: misaligned": large(
        200, {"placement": {"as-is": timing(200), "moved": timing(150)}, "data": {}}
    ),
    "placement: unlucky": large(
        55.5,
        {
            "placement": {"as-is": timing(55.4, width=0.003), "moved": timing(53.8, width=0.003)},
            "regime": {"burst": timing(55.3, 1975), "sustained": timing(56.5, 1940)},
        },
    ),
    "contention: thread, bandwidth": large(
        150, work=THREAD, neighbours={"copied_bytes_per_second": 2.1e12}
    ),
    "contention: thread, multiprocessors": large(150, work=THREAD, neighbours={"spin": 16e-3}),
    "contention: process, bandwidth": large(150, HOT, neighbours=SHARED),
    "contention: process, multiprocessors": large(150, HOT, neighbours=SHARED),
    "layout: transposed": large(
        60,
        {
            "layout": {"as-is": timing(60), "contiguous": timing(36)},
            "cache": {"cold": timing(70), "warm": timing(60)},
        },
    ),
    "layout: strided": large(120, {"layout": {"as-is": timing(120), "contiguous": timing(34)}}),
    "layout: NCHW": large(
        215,
        {
            "layout": {"as-is": timing(212, 1450), "channels_last": timing(145, 1400)},
            "regime": {"burst": timing(190, 1600), "sustained": timing(226, 1320)},
        },
        work={"kernels": 3, "conversion": 68 * US},
    ),
    "transfer: pageable, in": copied(620, 480, 500, "pageable", copying=560),
    # The profiler may see little of a copy through memory that the driver stages.
    "transfer: pageable, out": copied(1500, 300, 320, "pageable", copying=1300),
    "transfer: pinned, in": copied(345, 330, 340, "pinned", copying=5),
    "transfer: mapped, in": large(
        720,
        {"placement": {"as-is": timing(720), "moved": timing(16)}},
        work=seconds(seconds=16, union=16, span=16) | {"mapped_bytes": 33 << 20},
    ),
    # Without toggling bits the clock stays high in a burst, and falls later.
    "data: zeros": large(
        1400,
        {
            "data": {
                "as given": timing(1410, 1690),
                "zeros": timing(1410, 1690),
                "random": timing(1600, 1490),
            },
            "regime": {"burst": timing(1220, 1950), "sustained": timing(1420, 1680)},
        },
        work={"remarkable_inputs": 2},
    ),
    "data: turns by value": large(300, {"data": {**times(as_given=300, zeros=60, random=325)}}),
    "control: relu": large(256),
    "control: add": large(360),
    "control: softmax": large(250),
    "control: layer_norm": large(
        180, {"regime": {"burst": timing(180, 1975), "sustained": timing(186, 1890)}}
    ),
    "control: sum": large(95, {"cache": times(cold=95, cold_clean=93, warm=90, rotated=95)}),
    "control: gather": large(135, {"cache": times(cold=138, cold_clean=134, warm=132)}),
    "control: overlapped copy": large(
        245,
        trace=running(248, 2, copies=24, pinned=24, hidden_copies=18, copying=8)
        | seconds(kernels=245),
        work={"copies": 1, "copied_bytes": 1 << 20},
    ),
    "control: two streams": large(385, calls=called(390, 45), work={"kernels": 3}),
}
