"""The rules of a diagnosis on a GPU, on evidence that is written by hand."""

import dataclasses
import json
from typing import get_args

import pytest

from convtime.core import codec
from convtime.diagnosis import rules
from convtime.diagnosis.advice import ADVICE, advise
from convtime.diagnosis.diagnosis import CauseCode
from convtime.diagnosis.effects import (
    LEAST_EFFECT,
    LEAST_EFFECT_ON_CPU,
    LIKELY,
    POSSIBLE,
    SURE,
    account_of,
)
from convtime.diagnosis.evidence import Evidence
from convtime.diagnosis.rules import judge
from tests.helpers.clean_evidence import CLEAN, US, but, times, timing


def codes(evidence: Evidence) -> list[str]:
    return [cause.code for cause in judge(evidence)]


# By cause: evidence of it, its effect as computed by hand, and its confidence.
PLANTED: dict[str, tuple[Evidence, float, float]] = {
    "launch-bound": (
        but(calls={"loop": timing(200), "issuing": 195 * US},
            trace={"busy": 40 * US, "kernels": 40 * US, "launches": 30.0}),
        (195 - 40) / 200,
        SURE,
    ),
    "host-bound": (
        but(calls={"loop": timing(2000), "issuing": 1990 * US}), (1990 - 100) / 2000, SURE
    ),
    "synchronisation": (
        but(calls={"loop": timing(130), "issuing": 125 * US},
            trace={"waits": 4.0, "waiting": 50 * US, "issuing": 45 * US, "launches": 8.0,
                   "busy": 30 * US, "kernels": 26 * US, "copies": 4 * US, "copying": 20 * US},
            work={"copies": 4, "copied_bytes": 16, "held": False}),
        100 / 130,
        SURE,
    ),
    "missing-wait": (but(serialized={"differing": 2, "largest_error": 1.5}), 1.0, SURE),
    "allocation": (
        but(calls={"loop": timing(900), "issuing": 890 * US, "allocations": 1.0, "frees": 1.0},
            trace={"allocations": 2.0, "allocating": 780 * US, "issuing": 20 * US}),
        780 / 900,
        SURE,
    ),
    "first-call": (
        but(calls={"first": (0.4, 120 * US, 118 * US)}), 0.399888 / (0.399888 + 0.101), SURE
    ),
    "cache": (but(contrasts={"cache": times(cold=160, warm=95)}), 65 / 160, SURE),
    "clock": (
        but(contrasts={"regime": {"burst": timing(100, 1980), "sustained": timing(118, 1600)}}),
        18 / 118,
        SURE,
    ),
    "placement": (
        but(contrasts={"placement": {"as-is": timing(112), "moved": timing(100)}}), 12 / 112, SURE
    ),
    "contention": (but(neighbors={"spin": 16e-3}), 1 - 8.04 / 16, LIKELY),
    "layout": (
        but(contrasts={"layout": {"as-is": timing(100), "contiguous": timing(60)}}),
        0.4 * 100 / 101,  # of a call of 101 µs
        SURE,
    ),
    "transfer": (
        but(calls={"loop": timing(1000), "issuing": 900 * US},
            trace={"busy": 990 * US, "copies": 890 * US, "pageable": 890 * US,
                   "copying": 880 * US, "waits": 1.0, "waiting": 5 * US, "issuing": 12 * US},
            work={"copies": 1, "copied_bytes": 8 << 20, "held": False}),
        (1000 - 100) / 1000,
        SURE,
    ),
    "data": (
        but(contrasts={"data": times(as_given=100, zeros=100, random=115)},
            work={"remarkable_inputs": 1}),
        15 / 115,
        SURE,
    ),
    "process": (
        but(contrasts={"process": times(here=120, elsewhere=100)}), 20 / 120, LIKELY
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", PLANTED)
def test_what_is_planted_comes_first_with_evidence_and_advice(code: str) -> None:
    seen, effect, confidence = PLANTED[code]
    assert seen.on_gpu
    first, *_ = judge(seen)
    assert first.code == code
    assert first.evidence
    assert all(first.evidence)
    assert (first.effect, first.confidence) == pytest.approx((effect, confidence))
    assert advise(first, seen)
    read = codec.decode(Evidence, json.loads(json.dumps(codec.encode(seen))))
    assert judge(read) == judge(seen)
    account = account_of(seen)
    assert account.busy + account.idle == pytest.approx(account.seconds)


def test_every_cause_has_a_limit_and_advice_and_of_a_clean_call_nothing_is_said() -> None:
    assert set(PLANTED) == set(LEAST_EFFECT)
    assert {*LEAST_EFFECT, *LEAST_EFFECT_ON_CPU} == set(ADVICE) == set(get_args(CauseCode))
    assert judge(CLEAN) == ()


LAUNCHED = PLANTED["launch-bound"][0]
WAITING = PLANTED["synchronisation"][0]
SLOW_CLOCK = {"regime": {"burst": timing(100, 1770)}}
PLACES = but(work={"place_spread": 0.1, "place_share": 0.6})
GIVEN = {"tensor_bytes": 40_000_000}
WASTEFUL = but(counters={rules.BYTES_READ: 400e6}, work=GIVEN)
MAPPED = but(
    contrasts={"placement": {"as-is": timing(700), "moved": timing(20)}},
    calls={"loop": timing(701)},
    work={"mapped_bytes": 1 << 25},
)
DATA = {"data": {"as given": timing(115, 1600), "zeros": timing(100, 1850)}}
COPIES = {"copies": 40 * US, "pinned": 40 * US, "copying": 2 * US}
COPIED = {"copies": 1, "copied_bytes": 1 << 20}
ALLOCATING = but(calls={"loop": timing(400), "issuing": 90 * US, "allocations": 0.6})


def host(microseconds: float) -> Evidence:
    """Evidence of ten launches, each of at most 35 µs if the host does nothing else."""
    calls = {"loop": timing(2000), "issuing": microseconds * US}
    return but(calls=calls, trace={"launches": 10.0})


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # Intervals that meet show nothing.
        (but(contrasts={"cache": {"cold": timing(110, width=0.1), "warm": timing(100)}}), []),
        (but(contrasts={"cache": {"cold": timing(110), "warm": timing(95)}}), ["cache"]),
        # A difference of the clock is none of the cache.
        (but(contrasts={"cache": {"cold": timing(120, 1500), "warm": timing(100, 1800)}}), []),
        # Numbers that save power alone are the clock's doing, except if all numbers are equal.
        (but(contrasts=DATA), []),
        (but(contrasts=DATA, work={"remarkable_inputs": 1}), ["data"]),
        # What a call is a small part of weighs little.
        (but(LAUNCHED, {"cache": {"cold": timing(12), "warm": timing(6)}}), ["launch-bound"]),
        # Copies beside kernels cost nothing.
        (but(trace={**COPIES, "hidden_copies": 40 * US}, calls={"loop": timing(150)}, work=COPIED),
         []),
        (but(trace=COPIES, calls={"loop": timing(150)}, work=COPIED), ["transfer"]),
        (but(trace=COPIES, calls={"loop": timing(150)}, work={**COPIED, "copied_bytes": 16}), []),
        (MAPPED, ["transfer"]),
        (but(MAPPED, work={"mapped_bytes": 0}), ["placement"]),
        # Others show in launches, copies or kernels of known duration.
        (but(work={"other_launches": 0.09}), []),
        (but(work={"other_launches": 0.1}), ["contention"]),
        (but(neighbors={"copied_bytes_per_second": 0.62 * 4.8e12}), ["contention"]),
        (but(neighbors={"copied_bytes_per_second": 0.71 * 4.8e12}), []),
        (but(neighbors={"spin": 8.04e-3 * 1.14}), []),
        (but(neighbors={"spin": 8.04e-3 * 1.16}), ["contention"]),
        # The host works where a launch takes more than five times the smallest one.
        (host(340), ["launch-bound"]),
        (host(360), ["host-bound"]),
        (but(serialized={"repeats": False, "differing": 4}), []),
        # Counters show accesses that no other layout does, of one kernel that memory bounds.
        (WASTEFUL, ["layout"]),
        (dataclasses.replace(WASTEFUL, counters={}), []),
        (but(counters={rules.BYTES_READ: 99e6}, work={**GIVEN, "seconds": 40 * US}), []),
        (but(counters={rules.BYTES_READ: 101e6}, work={**GIVEN, "seconds": 40 * US}), ["layout"]),
        (but(WASTEFUL, work={"seconds": 1000 * US}), []),  # as by tiles of a large matmul
        (but(WASTEFUL, work={"kernels": 2}), []),  # which read what others have written
        # Even bursts may be below the highest clock, of 1980 MHz.
        (but(contrasts=SLOW_CLOCK), ["clock"]),
        (but(contrasts={"regime": {"burst": timing(100, 1790)}}), []),
        # Placements that were drawn have more of the variance than their samples.
        (PLACES, ["placement"]),
        (but(PLACES, work={"place_share": 0.4}), []),
        # Waits in half of the calls count.
        (but(WAITING, trace={"waits": 0.4}), ["launch-bound"]),
        (but(WAITING, trace=None, held={"returned": 0.021}), ["synchronisation"]),
        (but(WAITING, trace=None, held={"returned": 0.0181}, work={"held": None}),
         ["synchronisation"]),
        (but(WAITING, trace=None, held={"returned": 0.0179}, work={"held": None}),
         ["launch-bound"]),
        # Without a trace of them, requests take what the GPU is idle for.
        (ALLOCATING, ["allocation"]),
        (but(ALLOCATING, calls={"allocations": 0.4}), []),
    ],
)  # fmt: skip
def test_what_is_a_cause_and_what_is_none(seen: Evidence, expected: list[str]) -> None:
    assert codes(seen) == expected


@pytest.mark.parametrize("median", [0, -0.3])
def test_a_change_after_which_the_gpu_has_no_work_is_a_sure_one(median: float) -> None:
    """As of `x.contiguous()` where x is; less than 0 where a method's own cost is taken off."""
    seen = but(contrasts={"layout": {"as-is": timing(100), "contiguous": timing(median)}})
    (cause,) = judge(seen)
    assert (cause.code, cause.confidence) == ("layout", SURE)
    assert 0.98 < cause.effect <= 1
    assert advise(cause, seen)


def test_effects_of_what_no_contrast_varies() -> None:
    spread = {"place_spread": 0.1, "place_share": 0.6}
    seen = but(WASTEFUL, SLOW_CLOCK, work=spread)
    effects = {cause.code: cause.effect for cause in judge(seen)}
    share = 100 / 101  # of a call in a loop
    assert effects == pytest.approx(
        {"layout": 0.9 * share, "clock": (1 - 1770 / 1980) * share, "placement": 0.05 * share}
    )
    (copied,) = judge(but(neighbors={"copied_bytes_per_second": 0.35 * 4.8e12}))
    assert copied.effect == pytest.approx(0.5)
    for issuing, confidence in ((118, LIKELY), (122, SURE)):  # of a GPU that is busy for 100 µs
        (late,) = judge(but(calls={"loop": timing(130), "issuing": issuing * US}))
        assert (late.effect, late.confidence) == (pytest.approx((issuing - 100) / 130), confidence)
    (allocated,) = judge(ALLOCATING)
    assert (allocated.effect, allocated.confidence) == (pytest.approx(300 / 400), POSSIBLE)


def test_what_is_said_of_mapped_memory_and_of_graphs_and_what_advice_saves() -> None:
    (cause,) = judge(MAPPED)
    assert "(mapped)" in cause.sentence
    assert advise(cause, MAPPED)[0].saved == pytest.approx(680 * US)
    seen = but(LAUNCHED, contrasts={"method": {"graph": timing(45)}})
    first, *rest = advise(judge(seen)[0], seen)
    assert first.saved == pytest.approx(155 * US)
    assert str(first).endswith("(saves 155.0 µs of 200.0 µs here)")
    assert all(each.saved is None and str(each) == each.text for each in rest)
    batches = {"batch": {"one call": timing(200), "8 calls": timing(400)}}
    batched = advise(judge(but(LAUNCHED, batches))[0], but(LAUNCHED, batches))
    assert batched[0].saved == pytest.approx(150 * US)


def test_beside_others_all_else_is_less_sure() -> None:
    cached, _, sure = PLANTED["cache"]
    first, second = judge(but(cached, neighbors={"spin": 16e-3}))
    assert (first.code, second.code) == ("contention", "cache")
    assert (first.confidence, second.confidence) == pytest.approx((LIKELY, 0.6 * sure))
    constant = but(PLANTED["clock"][0], DATA, work={"remarkable_inputs": 1})
    assert {each.code: each.confidence for each in judge(constant)} == pytest.approx(
        {"data": SURE, "clock": 0.6 * SURE}
    )


def test_causes_are_in_the_order_of_effect_times_confidence() -> None:
    two = but(PLANTED["cache"][0], {"layout": {"as-is": timing(100), "contiguous": timing(50)}})
    assert codes(two) == ["layout", "cache"]
    less_sure = {"as-is": timing(100, width=0.12), "contiguous": timing(60, width=0.12)}
    assert codes(but(PLANTED["cache"][0], {"layout": less_sure})) == ["cache", "layout"]
    wrong = but(two, neighbors={"spin": 16e-3}, serialized={"differing": 1})
    assert codes(wrong) == ["missing-wait", "contention", "layout", "cache"]
