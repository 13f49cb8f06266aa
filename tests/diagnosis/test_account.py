"""Where a call's time goes, of drawn evidence, against shares that are computed another way."""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime.diagnosis.effects import account_of
from convtime.diagnosis.evidence import Evidence, Host, Operators, Waits
from tests.helpers.clean_evidence import US, but, timing

times = st.floats(0, 300).map(lambda each: each * US)


@given(
    st.floats(10, 300),
    st.fixed_dictionaries(
        dict.fromkeys(("busy", "copies", "hidden_copies", "issuing"), times)
        | dict.fromkeys(("waiting", "allocating", "copying"), st.floats(0, 20e-6))
    ),
    times,
)
@settings(max_examples=50)
def test_a_gpu_is_busy_or_idle_and_waits_are_not_issued(
    loop: float, trace: dict[str, float], issuing: float
) -> None:
    trace["hidden_copies"] = min(trace["hidden_copies"], trace["copies"])
    seen = but(calls={"loop": timing(loop), "issuing": issuing}, trace={**trace, "launches": 3.0})
    found = account_of(seen)
    assert found.seconds == loop * US
    assert found.busy + found.idle == pytest.approx(loop * US)
    assert found.busy == min(trace["busy"], loop * US)
    assert found.copies == trace["copies"] - trace["hidden_copies"]
    assert (found.waiting, found.allocating) == (trace["waiting"], trace["allocating"])
    assert found.launches == 3
    not_issuing = trace["waiting"] + trace["allocating"] + trace["copying"]
    expected = min(issuing, trace["issuing"]) if not_issuing > issuing / 10 else issuing
    assert found.issuing == expected


def test_without_a_trace_a_gpu_is_busy_as_long_as_a_warm_call() -> None:
    seen = but(trace=None, work={"kernels": 3, "copies": 2}, calls={"loop": timing(150)})
    found = account_of(seen)
    assert (found.busy, found.launches) == (pytest.approx(99.5 * US), 5)
    assert found.idle == pytest.approx(50.5 * US)
    cold = account_of(dataclasses.replace(seen, contrasts={}))
    assert cold.busy == 100 * US
    assert account_of(but(seen, calls={"loop": timing(60)})).busy == 60 * US


def on_cpu(host: Host | None, operators: Operators | None, loop: float, running: float) -> Evidence:
    seen = but(calls={"loop": timing(loop), "running": running})
    return dataclasses.replace(seen, on_gpu=False, trace=None, host=host, operators=operators)


DRAWN = st.fixed_dictionaries(
    {"loop": st.floats(10, 300), "per_call": st.floats(10, 300), "threads": st.floats(1, 4)}
    | dict.fromkeys(("kernel", "longest", "throttled", "dispatching"), times)
    | dict.fromkeys(("sleeping", "others"), st.integers(0, 1000))
    | {"faults": st.floats(0, 50), "inside": st.floats(0, 1.2)}
    | {"background": st.sampled_from([0.0, 0.1, 0.3, 1.0])}
)


@given(DRAWN)
@settings(max_examples=100)
def test_shares_of_a_call_on_a_cpu(of: dict[str, Any]) -> None:
    looks, loop, per_call = 2000, of["loop"], of["per_call"]
    host = Host(
        seconds=per_call * US,
        cpu=per_call * US,
        kernel=of["kernel"],
        cores=2.0,
        longest_wait=of["longest"],
        threads=of["threads"],
        background=of["background"],
        throttled=of["throttled"],
        minor_faults=of["faults"],
        fault_seconds=0.5 * US,
        waits=Waits(
            *(per_call * US, looks, looks - of["sleeping"] - of["others"], of["sleeping"]),
            other_threads=of["others"],
        ),
    )
    inside = min(1, of["inside"])
    operators = Operators(2, 1, of["inside"] * 80 * US, of["dispatching"], 80 * US, 0.5 * US)
    found = account_of(on_cpu(host, operators, loop, 1.0))
    # In shares of a call, of which none is more than the whole.
    asleep = min(1, of["sleeping"] / looks * per_call / loop)
    stopped = min(1, of["throttled"] / (per_call * US))
    queued = min(1 - stopped, max(0, of["longest"] / (per_call * US) - stopped))
    in_kernel = min(1, of["kernel"] / (per_call * US) / of["threads"])
    behind = of["others"] / looks * per_call / loop if of["background"] >= 0.2 else 0
    own = max(0, 1 - asleep - queued - stopped - behind)
    python = max(0, own - inside - (1 - inside) * in_kernel)
    expected = {
        "waiting": asleep,
        "throttled": stopped,
        "queued": queued,
        "faulting": min(in_kernel, of["faults"] * 0.5 / per_call / of["threads"]),
        "interpreting": python,
        "dispatching": min(own - python, of["dispatching"] / (loop * US)),
        "issuing": 1 - asleep,
        "busy": 1,
    }
    shares = {name: getattr(found, name) / (loop * US) for name in expected}
    assert shares == pytest.approx(expected, abs=1e-9)
    assert found.idle == found.copies == found.launches == 0


def test_without_looks_a_thread_waits_while_the_process_does_not_run() -> None:
    found = account_of(on_cpu(None, None, 200, 0.3))
    assert (found.waiting, found.issuing) == pytest.approx((140 * US, 60 * US))
    assert found.seconds == found.busy == pytest.approx(200 * US)
    assert account_of(on_cpu(None, None, 200, 2.5)).waiting == 0  # several threads ran
