import dataclasses
import json
import re
import warnings
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convtime.regression.changes import Change, Changes
from convtime.regression.compare_runs import compare_runs
from convtime.timing.verdict import ChangeVerdict
from tests.helpers.runs import PROVENANCE, counting, noisy, of

VERDICTS = get_args(ChangeVerdict)
CHANGE = st.builds(
    lambda verdict, contradicts, more, why: Change(
        "",
        verdict,
        contradiction="but slower in span" if contradicts else "",
        more_instructions="executes more" if more else "",
        instructions_reason=why,
    ),
    st.sampled_from(VERDICTS),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "", "no counts"]),
)
FAILURES = [*(each for each in VERDICTS if each != "same"), "contradictory", "more-instructions"]


@example([Change("", "same", instructions_reason="no counts")], {"more-instructions"}, 125)
@example([Change("", "uncertain"), Change("", "slower")], {"faster"}, 125)
@given(st.lists(CHANGE, max_size=4), st.sets(st.sampled_from(FAILURES)), st.sampled_from([0, 125]))
def test_exit_code_is_that_of_what_is_to_fail_and_else_of_what_is_unknown(
    drawn: list[Change], fail_on: set[Any], uncertain: int
) -> None:
    changes = Changes(
        tuple(dataclasses.replace(each, name=str(number)) for number, each in enumerate(drawn))
    )
    found = {str(each.verdict) for each in drawn} - {"same"}
    found |= {"contradictory"} if any(each.contradiction for each in drawn) else set()
    found |= {"more-instructions"} if any(each.more_instructions for each in drawn) else set()
    unjudged = "more-instructions" in fail_on and any(each.instructions_reason for each in drawn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        code = changes.exit_code(fail_on, uncertain)
    assert bool(told) == unjudged
    if found & fail_on:
        assert code == 1
    else:
        assert code == (uncertain if "uncertain" in found or unjudged else 0)


def test_headlines_and_findings_that_are_none() -> None:
    rng = np.random.default_rng(9)
    base = {"x": noisy(rng), "y": noisy(rng)}
    unsure = compare_runs(base, {"x": of([1e-5, 1.1e-5]), "y": base["y"]})
    told = unsure.to_markdown("slower")
    assert told.startswith("**passed: 2 compared, none slower, 1 uncertain**")
    unknown = dataclasses.replace(unsure, changes=(unsure["x"],))
    assert unknown.to_markdown("slower").startswith("**inconclusive: 1 compared, all uncertain**")
    told = unknown.to_markdown("missing")
    assert told.startswith("**passed: 1 compared, none missing, 1 uncertain**")
    with pytest.raises(ValueError, match="fail_on must be some of"):
        unsure.exit_code("slow")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="in neither"):
        unsure["another"]


def test_names_whose_instructions_are_not_judged_for_one_reason_share_a_sentence() -> None:
    run = {name: counting(None, counters_reason="no perf") for name in "abc"}
    (sentence,) = compare_runs(run, run).unjudged_instructions
    assert "a and 2 more" in sentence


def test_what_counts_is_what_a_second_look_bears_out() -> None:
    rng = np.random.default_rng(11)
    base = {name: noisy(rng) for name in ("twice", "once", "both", "calm")}
    after = {name: noisy(rng, 1.1e-5) for name in base} | {"calm": noisy(rng)}
    first = compare_runs(base, after)
    second = {"twice": noisy(rng, 1.1e-5), "once": noisy(rng), "both": noisy(rng, 0.9e-5)}
    again = compare_runs(base, second)
    found = first.confirmed(
        dataclasses.replace(again, changes=again.of("slower", "faster", "same"))
    )
    verdicts = [change.verdict for change in found.changes]
    assert verdicts == ["slower", "same", "uncertain", "same"]
    assert found["both"].reason == "not-confirmed"
    assert "then faster: the measurements disagree" in found["both"].sentence
    assert found["twice"].sentence.startswith("found twice, first as 1.")
    assert found["once"].sentence.startswith("at first slower: 1.")
    assert found["twice"].ratio != first["twice"].ratio
    assert found["calm"] == first["calm"]


def test_text_and_markdown_tell_what_changed_and_how_to_see_it_again() -> None:
    rng = np.random.default_rng(10)
    name = "test_conv[<b>|`x`]\n::second"
    again = PROVENANCE | {"reproducer": "convtime conv conv2d:n1c8h8w8k8r3s3:float32"}
    changes = compare_runs(
        {name: noisy(rng), "calm": noisy(rng)},
        {name: dataclasses.replace(noisy(rng, 1.1e-5), provenance=again), "calm": noisy(rng)},
    )
    assert str(changes).startswith("2 compared: 1 slower, 1 same; geomean 1.0")
    text = changes.details()
    assert "conv2d:n1c8h8w8k8r3s3:float32" in text
    assert re.search(r"(10\.0|9\.9)\d* µs → 11\.0\d µs", text)
    assert r"test_conv[<b>|`x`]\n::second" in text
    assert "calm" not in text
    assert "test_conv[&lt;b&gt;|`x`]" in changes._repr_html_()
    rows = [line for line in changes.to_markdown().splitlines() if line.startswith("| slower")]
    assert len(rows) == 1
    assert "<b>" not in rows[0]
    assert "test\\_conv\\[&lt;b&gt;\\|\\`x\\`\\]" in rows[0]
    assert json.loads(json.dumps(changes.to_dict(), allow_nan=False))["changes"][0]["name"] == name
