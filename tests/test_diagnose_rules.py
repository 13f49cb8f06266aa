"""The rules of a diagnosis, on evidence that is written by hand."""

import dataclasses
import json

import pytest

from convtime.core import codec
from convtime.results.evidence import (
    Calls,
    Evidence,
    Held,
    Neighbours,
    Serialised,
    Timing,
    Trace,
    Work,
)
from convtime.study.diagnose import rules
from convtime.study.diagnose.account import account_of
from convtime.study.diagnose.advice import advise
from convtime.study.diagnose.rules import judge, variance_shares

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
    union=100 * US,
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
    "placement": {"as-is": timing(100), "moved": timing(100.5), "random": timing(99.8)},
    "regime": {"burst": timing(100, 1980), "sustained": timing(101, 1970)},
    "data": {"as given": timing(100), "zeros": timing(99.5), "random": timing(100)},
}
CLEAN = Evidence(
    on_gpu=True,
    calls=CALLS,
    work=WORK,
    contrasts=CONTRASTS,
    trace=TRACE,
    serialised=Serialised(repeats=True, calls=4, differing=0),
    held=Held(0.02, 10 * US),
    neighbours=Neighbours(8.04e-3, 8.1e-3, 4.3e12, 4.8e12, other_processes=0),
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


def codes(evidence):
    return [cause.code for cause in judge(evidence)]


def test_of_a_clean_call_nothing_is_said():
    assert judge(CLEAN) == ()


def test_evidence_survives_json_and_is_judged_alike():
    seen = but(calls={"issuing": 500 * US, "loop": timing(510)})
    read = codec.decode(Evidence, json.loads(json.dumps(codec.encode(seen))))
    assert read == seen
    assert judge(read) == judge(seen)


PLANTED = {
    "launch-bound": but(
        calls={"loop": timing(200), "issuing": 195 * US},
        trace={"busy": 40 * US, "kernels": 40 * US, "launches": 30.0},
    ),
    "host-bound": but(calls={"loop": timing(2000), "issuing": 1990 * US}),
    "synchronisation": but(
        calls={"loop": timing(130), "issuing": 125 * US},
        trace={
            "waits": 4.0,
            "waiting": 50 * US,
            "issuing": 45 * US,
            "launches": 8.0,
            "busy": 30 * US,
            "kernels": 26 * US,
        },
        work={"copies": 4, "copied_bytes": 16, "held": False},
    ),
    "missing-wait": but(serialised={"differing": 2, "largest_error": 1.5}),
    "allocation": but(
        calls={"loop": timing(900), "issuing": 890 * US, "allocations": 1.0, "frees": 1.0},
        trace={"allocations": 2.0, "allocating": 780 * US, "issuing": 20 * US},
    ),
    "first-call": but(calls={"first": (0.4, 120 * US, 118 * US)}),
    "cache": but(contrasts={"cache": times(cold=160, warm=95)}),
    "clock": but(
        contrasts={"regime": {"burst": timing(100, 1980), "sustained": timing(118, 1600)}}
    ),
    "placement": but(contrasts={"placement": {"as-is": timing(112), "moved": timing(100)}}),
    "contention": but(neighbours={"spin": 16e-3}),
    "layout": but(contrasts={"layout": {"as-is": timing(100), "contiguous": timing(60)}}),
    "transfer": but(
        calls={"loop": timing(1000), "issuing": 900 * US},
        trace={
            "busy": 990 * US,
            "copies": 890 * US,
            "pageable": 890 * US,
            "copying": 880 * US,
            "waits": 1.0,
            "waiting": 5 * US,
            "issuing": 12 * US,
        },
        work={"copies": 1, "copied_bytes": 8 << 20, "held": False},
    ),
    "data": but(
        contrasts={"data": times(as_given=100, zeros=100, random=115)},
        work={"remarkable_inputs": 1},
    ),
}


@pytest.mark.parametrize("code", PLANTED)
def test_what_is_planted_comes_first_with_evidence_and_advice(code):
    first, *_ = judge(PLANTED[code])
    assert first.code == code
    assert first.evidence
    assert all(first.evidence)
    assert 0 < first.effect <= 1
    assert first.confidence >= rules.POSSIBLE
    assert advise(first, PLANTED[code])


def test_every_cause_of_a_gpu_is_planted():
    assert {*PLANTED, "threads", "process"} == set(rules.LEAST_EFFECT)


def test_intervals_that_meet_show_nothing():
    wide = {"cold": timing(110, width=0.1), "warm": timing(95, width=0.1)}
    assert codes(but(contrasts={"cache": wide})) == []
    assert codes(but(contrasts={"cache": {"cold": timing(110), "warm": timing(95)}})) == ["cache"]


def test_a_difference_of_the_clock_is_none_of_the_cache():
    caches = {"cold": timing(120, clock_mhz=1500), "warm": timing(100, clock_mhz=1800)}
    assert codes(but(contrasts={"cache": caches})) == []


def test_numbers_that_save_power_alone_are_the_clocks_doing():
    data = {"as given": timing(115, 1600), "zeros": timing(100, 1850)}
    assert codes(but(contrasts={"data": data})) == []
    assert codes(but(contrasts={"data": data}, work={"remarkable_inputs": 1})) == ["data"]


def test_what_a_call_is_a_small_part_of_weighs_little():
    """A kernel that the GPU waits for anyway may find its data in the cache or not."""
    seen = but(
        PLANTED["launch-bound"],
        contrasts={"cache": {"cold": timing(12), "warm": timing(6)}, "placement": {}},
    )
    assert codes(seen) == ["launch-bound"]


def test_small_copies_are_answers_that_are_waited_for():
    assert codes(PLANTED["synchronisation"])[0] == "synchronisation"
    assert "transfer" not in codes(PLANTED["synchronisation"])


def test_copies_beside_kernels_cost_nothing():
    hidden = {"copies": 40 * US, "hidden_copies": 40 * US, "pinned": 40 * US, "copying": 2 * US}
    assert codes(but(trace=hidden, work={"copies": 1, "copied_bytes": 1 << 20})) == []


def test_a_result_that_does_not_repeat_says_nothing_of_waits():
    assert codes(but(serialised={"repeats": False, "differing": 4})) == []


def test_beside_others_all_else_is_less_sure():
    cached = but(contrasts={"cache": times(cold=160, warm=95)})
    (alone,) = judge(cached)
    first, second = judge(but(cached, neighbours={"spin": 16e-3}))
    assert (first.code, second.code) == ("contention", "cache")
    assert second.confidence == pytest.approx(rules.BESIDE_OTHERS * alone.confidence)


def test_counters_show_accesses_that_no_other_layout_does():
    seen = but(counters={rules.BYTES_OF_A_SECTOR: 4.0})
    assert codes(seen) == ["layout"]
    assert codes(seen.without_counters()) == []
    assert codes(but(counters={rules.BYTES_OF_A_SECTOR: 32.0})) == []


def test_shares_of_the_variance_are_those_of_the_contrasts_and_the_rest():
    seen = but(
        contrasts={"cache": times(cold=200, warm=100), "regime": times(burst=100, sustained=200)}
    )
    shares = variance_shares(seen)
    assert shares["cache"] == pytest.approx(shares["clock"])
    assert 0.49 < shares["cache"] < 0.5
    assert sum(shares.values()) <= 1
    (cause,) = judge(but(contrasts={"cache": times(cold=200, warm=100)}))
    assert cause.variance_share > 0.99


def test_without_a_trace_a_call_that_returns_late_waits():
    late = but(PLANTED["synchronisation"], trace=None, held={"returned": 0.021})
    assert "synchronisation" in codes(late)
    assert "synchronisation" not in codes(but(trace=None))


def test_the_account_adds_up():
    for seen in PLANTED.values():
        account = account_of(seen)
        assert account.busy + account.idle == pytest.approx(account.seconds)
        assert min(dataclasses.astuple(account)) >= 0


ON_CPU = Evidence(
    on_gpu=False,
    calls=dataclasses.replace(CALLS, running=1.0),
    work=dataclasses.replace(WORK, held=None, highest_clock_hz=None, kernels=0),
    neighbours=Neighbours(load=0.3),
)


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("host-bound", but(ON_CPU, calls={"running": 0.1})),
        ("contention", but(ON_CPU, neighbours=Neighbours(load=4.0))),
        ("threads", but(ON_CPU, {"threads": {"as-is": timing(100), "1 thread": timing(40)}})),
        (
            "data",
            but(ON_CPU, {"data": times(as_given=900, random=100)}, work={"remarkable_inputs": 1}),
        ),
        (
            "process",
            but(ON_CPU, {"process": {"here": timing(100), "in a fresh process": timing(130)}}),
        ),
    ],
)
def test_on_a_cpu(code, seen):
    assert codes(ON_CPU) == []
    assert codes(seen)[0] == code
    assert advise(judge(seen)[0], seen)


def test_on_a_loaded_cpu_waiting_cannot_be_told_from_sleeping():
    seen = but(ON_CPU, calls={"running": 0.1}, neighbours=Neighbours(load=4.0))
    assert codes(seen) == ["contention"]


def test_advice_that_was_tried_says_what_it_saves():
    seen = but(PLANTED["launch-bound"], contrasts={"method": {"graph": timing(45)}})
    first, *rest = advise(judge(seen)[0], seen)
    assert first.saved == pytest.approx(155 * US)
    assert str(first).endswith("(saves 155.0 µs of 200.0 µs here)")
    assert all(each.saved is None for each in rest)
    assert str(rest[0]).endswith("(not tried here)")
