"""The rules of a diagnosis, on evidence that is written by hand."""

import dataclasses
import json
from typing import get_args

import pytest

from convtime.core import codec
from convtime.diagnosis import cpu_rules, rules, weighing
from convtime.diagnosis.account import account_of
from convtime.diagnosis.advice import ADVICE, advise
from convtime.diagnosis.diagnosis import CauseCode
from convtime.diagnosis.evidence import Evidence, Host, Operators, Waits
from convtime.diagnosis.rules import judge
from convtime.diagnosis.weighing import variance_shares
from tests.helpers import RESULTS
from tests.helpers.clean_evidence import CALLS, CLEAN, US, WORK, but, times, timing


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
            "copies": 4 * US,
            "copying": 20 * US,
        },
        work={"copies": 4, "copied_bytes": 16, "held": False},
    ),
    "missing-wait": but(serialized={"differing": 2, "largest_error": 1.5}),
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
    "contention": but(neighbors={"spin": 16e-3}),
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
    assert first.confidence >= weighing.POSSIBLE
    assert advise(first, PLANTED[code])


def test_every_cause_of_a_gpu_is_planted():
    assert {*PLANTED, "process"} == set(weighing.LEAST_EFFECT)


def test_intervals_that_meet_show_nothing():
    wide = {"cold": timing(110, width=0.1), "warm": timing(95, width=0.1)}
    assert codes(but(contrasts={"cache": wide})) == []
    assert codes(but(contrasts={"cache": {"cold": timing(110), "warm": timing(95)}})) == ["cache"]


@pytest.mark.parametrize("median", [0, -0.3])
def test_a_change_after_which_the_gpu_has_no_work_is_a_sure_one(median):
    """As of `x.contiguous()` where x is; less than 0 where a method's own cost is taken off."""
    seen = but(contrasts={"layout": {"as-is": timing(100), "contiguous": timing(median)}})
    (cause,) = judge(seen)
    assert (cause.code, cause.confidence) == ("layout", weighing.SURE)
    assert 0.98 < cause.effect <= 1
    advise(cause, seen)


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


def test_of_mapped_memory_other_addresses_are_in_other_memory():
    places = {"placement": {"as-is": timing(700), "moved": timing(20)}}
    seen = but(contrasts=places, calls={"loop": timing(701)}, work={"mapped_bytes": 1 << 25})
    (cause,) = judge(seen)
    assert cause.code == "transfer"
    assert "(mapped)" in cause.sentence
    assert advise(cause, seen)[0].saved == pytest.approx(680 * US)
    assert codes(but(seen, work={"mapped_bytes": 0})) == ["placement"]


def test_copies_beside_kernels_cost_nothing():
    hidden = {"copies": 40 * US, "hidden_copies": 40 * US, "pinned": 40 * US, "copying": 2 * US}
    loop = {"loop": timing(150)}
    assert codes(but(trace=hidden, calls=loop, work={"copies": 1, "copied_bytes": 1 << 20})) == []


@pytest.mark.parametrize(
    "seen",
    [
        but(work={"other_launches": 0.4}),
        but(neighbors={"copied_bytes_per_second": 2.1e12}),
        but(neighbors={"spin": 16e-3}),
    ],
)
def test_others_show_in_launches_copies_or_kernels_of_known_duration(seen):
    assert codes(seen) == ["contention"]


def test_the_host_works_where_a_launch_takes_many_times_the_smallest():
    def code(microseconds):
        calls = {"loop": timing(2000), "issuing": microseconds * US}
        return codes(but(calls=calls, trace={"launches": 10.0}))

    assert code(320) == ["launch-bound"]
    assert code(400) == ["host-bound"]


def test_a_result_that_does_not_repeat_says_nothing_of_waits():
    assert codes(but(serialized={"repeats": False, "differing": 4})) == []


def test_beside_others_all_else_is_less_sure():
    cached = but(contrasts={"cache": times(cold=160, warm=95)})
    (alone,) = judge(cached)
    first, second = judge(but(cached, neighbors={"spin": 16e-3}))
    assert (first.code, second.code) == ("contention", "cache")
    assert second.confidence == pytest.approx(rules.DISTORTED * alone.confidence)


def test_counters_show_accesses_that_no_other_layout_does():
    given = {"tensor_bytes": 40_000_000}
    seen = but(counters={rules.BYTES_READ: 400e6}, work=given)
    assert codes(seen) == ["layout"]
    assert codes(seen.without_counters()) == []
    assert codes(but(counters={rules.BYTES_READ: 41e6}, work=given)) == []
    reused = {"tensor_bytes": 40_000_000, "seconds": 1000 * US}  # as by tiles of a large matmul
    assert codes(but(counters={rules.BYTES_READ: 400e6}, work=reused)) == []
    assert codes(but(seen, work={"kernels": 2})) == []  # which read what others have written


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


def waits(**counts):
    """Of a thread that was looked at 1,000 times, and was ready at all others."""
    return Waits(seconds=100 * US, looks=1000, ready=1000 - sum(counts.values()), **counts)


HOST = Host(
    seconds=100 * US,
    cpu=100 * US,
    kernel=1 * US,
    cores=2.0,
    waiting=0.0,
    longest_wait=0.0,
    threads=1.0,
    others=0.02,
    background=0.01,
    throttled=0.0,
    stolen=0.0,
    fault_seconds=0.5 * US,
    waits=waits(),
    rested_hz=3.0e9,
    loaded_hz=2.9e9,
)
ON_CPU = Evidence(
    on_gpu=False,
    calls=dataclasses.replace(CALLS, running=1.0),
    work=dataclasses.replace(WORK, held=None, highest_clock_hz=None, kernels=0),
    host=HOST,
    operators=Operators(
        count=2.0,
        outermost=1.0,
        seconds=98 * US,
        dispatching=1 * US,
        loop=100 * US,
        smallest=0.5 * US,
    ),
)
AWAY = {"placement": {"as-is": timing(150), "moved": timing(100)}}
PAGES = {"pages": {"as-is": timing(100), "retained": timing(40)}}


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        (
            "contention",
            but(ON_CPU, host={"others": 1.0, "waiting": 40 * US, "longest_wait": 40 * US}),
        ),
        ("quota", but(ON_CPU, host={"throttled": 50 * US})),
        ("blocking", but(ON_CPU, host={"waits": waits(sleeping=400)})),
        ("blocking", but(ON_CPU, host={"waits": waits(files=300, pages=100)})),
        ("blocking", but(ON_CPU, host={"waits": waits(locks=300)})),
        ("blocking", but(ON_CPU, host={"waits": waits(processes=300)})),
        ("blocking", but(ON_CPU, host=None, calls={"running": 0.1})),
        ("threads", but(ON_CPU, {"threads": {"as-is": timing(100), "1 thread": timing(40)}})),
        ("threads", but(ON_CPU, host={"background": 1.0, "longest_wait": 45 * US})),
        ("threads", but(ON_CPU, host={"background": 1.0, "waits": waits(other_threads=500)})),
        (
            "threads",
            but(ON_CPU, host={"cpu": 200 * US, "waiting": 400 * US, "longest_wait": 60 * US}),
        ),
        ("page-faults", but(ON_CPU, PAGES, host={"minor_faults": 120.0, "kernel": 70 * US})),
        ("page-faults", but(ON_CPU, host={"minor_faults": 120.0, "kernel": 70 * US})),
        ("allocation", but(ON_CPU, PAGES)),
        ("python-overhead", but(ON_CPU, operators={"seconds": 50 * US})),
        ("python-overhead", but(ON_CPU, operators={"count": 100.0, "dispatching": 50 * US})),
        (
            "denormals",
            but(ON_CPU, {"denormals": {"as-is": timing(100), "flushed": timing(30)}}),
        ),
        ("numa", but(ON_CPU, AWAY, host={"remote_share": 0.9})),
        ("placement", but(ON_CPU, AWAY, host={"remote_share": 0.1})),
        ("clock", but(ON_CPU, host={"loaded_hz": 2.1e9})),
        ("cache", but(ON_CPU, {"cache": times(cold=200, warm=100)})),
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


def test_every_cause_of_a_cpu_has_a_limit_and_advice():
    of_cpu = set(weighing.LEAST_EFFECT_ON_CPU)
    assert of_cpu | set(weighing.LEAST_EFFECT) == set(get_args(CauseCode))
    assert set(ADVICE) == set(get_args(CauseCode))


def test_waits_are_those_of_others_only_as_far_as_own_threads_find_cores():
    alone = but(ON_CPU, host={"others": 1.0, "waiting": 40 * US, "longest_wait": 40 * US})
    assert cpu_rules.of_others(alone.host) == 1
    own_too = {"others": 1.0, "cpu": 200 * US, "waiting": 100 * US, "longest_wait": 40 * US}
    assert cpu_rules.of_others(but(ON_CPU, host=own_too).host) == pytest.approx(0.5)
    assert cpu_rules.of_others(but(ON_CPU, host={"others": 0.1, "waiting": 1.0}).host) == 0


def test_what_a_call_waits_for_is_named():
    for kind, word in (
        ("sleeping", "sleeps"),
        ("files", "a file"),
        ("pages", "disk"),
        ("processes", "another process"),
        ("locks", "a lock"),
    ):
        (cause,) = judge(but(ON_CPU, host={"waits": waits(**{kind: 500})}))
        assert word in cause.sentence


def test_a_wait_for_the_threads_of_a_pool_is_none_of_the_causes():
    """The calling thread waits while others compute for it."""
    assert codes(but(ON_CPU, host={"waits": waits(other_threads=500)})) == []


def test_under_a_quota_all_else_is_less_sure():
    cached = but(ON_CPU, {"cache": times(cold=200, warm=100)})
    first, second = judge(but(cached, host={"throttled": 50 * US}))
    assert (first.code, second.code) == ("quota", "cache")
    assert second.confidence == pytest.approx(rules.DISTORTED * judge(cached)[0].confidence)


def test_on_a_cpu_a_cold_cache_comes_after_what_takes_as_much():
    seen = but(ON_CPU, {"cache": times(cold=200, warm=100)}, host={"waits": waits(sleeping=300)})
    assert codes(seen) == ["blocking", "cache"]


def test_the_account_of_a_cpu_tells_parts_of_the_time():
    blocked = but(ON_CPU, host={"waits": waits(sleeping=300), "longest_wait": 10 * US})
    account = account_of(but(blocked, operators={"seconds": 20 * US}))
    assert account.waiting == pytest.approx(0.3 * 100 * US)
    assert account.queued == pytest.approx(0.1 * account.seconds)
    assert account.interpreting == pytest.approx(0.4 * account.seconds, rel=0.05)
    parts = (account.waiting, account.queued, account.throttled, account.interpreting)
    assert sum(parts) <= account.seconds
    assert min(dataclasses.astuple(account)) >= 0


RECORDED = {
    row["key"]: row
    for row in json.loads((RESULTS / "cpu.json").read_text("utf-8"))["rows"]
    if "cause" in row
}


@pytest.mark.parametrize("key", RECORDED)
def test_what_was_planted_on_a_cpu_is_found_in_what_was_recorded_there(key):
    row = RECORDED[key]
    found = codes(codec.decode(Evidence, row["evidence"]))
    assert found == [cause["code"] for cause in row["causes"]]
    assert found[:1] == ([] if row["cause"] == "nothing" else [row["cause"]])


def test_advice_that_was_tried_says_what_it_saves():
    seen = but(PLANTED["launch-bound"], contrasts={"method": {"graph": timing(45)}})
    first, *rest = advise(judge(seen)[0], seen)
    assert first.saved == pytest.approx(155 * US)
    assert str(first).endswith("(saves 155.0 µs of 200.0 µs here)")
    assert all(each.saved is None for each in rest)
    assert str(rest[0]) == rest[0].text
