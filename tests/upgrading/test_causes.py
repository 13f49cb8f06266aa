import dataclasses
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from convtime.regression.attribution import Attribution
from convtime.upgrading.causes import cause_of, difference_of
from tests.helpers.pass_facts import FACTS, SETTINGS

# From the call to the kernels, and then what the whole process has.
CHAIN = (
    *("dtype", "module", "sizes", "layout", "method", "flag", "backend", "plan", "kernels"),
    *("threads", "clock", "version"),
)
NEW: dict[str, Any] = {
    "dtype": "float16",
    "module": "Wrapped()",
    "sizes": "9",
    "layout": "channels_last",
    "backend": "Slow2d",
    "plan": "eng2_k1=0",
    "kernels": ("aten::clone", "aten::mkldnn_convolution"),
}
SET = {
    "flag": ("flag cudnn.allow_tf32", "False"),
    "threads": ("threads", "1"),
    "version": ("torch", "2.15.0"),
}
GATES = {"method": "method", "clock": "hardware or clocks"}


@example({"flag"}, True)
@example({"flag", "threads"}, False)
@example({"method", "kernels"}, False)
@given(st.sets(st.sampled_from(CHAIN)), st.booleans())
def test_cause_is_the_earliest_in_the_chain_that_differs(planted: set[str], bits: bool) -> None:
    changed = {what: new for what, new in NEW.items() if what in planted}
    after = dataclasses.replace(FACTS, **changed, bits="4567" if bits else FACTS.bits)
    settings = SETTINGS | dict(SET[what] for what in SET if what in planted)
    told = next((gate for what, gate in GATES.items() if what in planted), None)
    evidence = "the gate's evidence"
    attribution = Attribution(told, evidence) if told else None  # type: ignore[arg-type]
    possible = [what for what in CHAIN if what in planted]
    if not (bits or planted & {"backend", "plan", "kernels"}):  # a flag without an effect
        possible = [what for what in possible if what != "flag"]
    if told == "method":  # the gate has one cause
        possible = [what for what in possible if what != "clock"]
    found = cause_of(FACTS, after, (SETTINGS, settings), attribution)
    expected = possible[0] if possible else "unknown"
    assert found.cause == expected
    if expected in changed and expected != "kernels":
        assert f"{getattr(FACTS, expected) or 'none'} → {changed[expected]}" in found.evidence
    elif expected in SET:
        assert f"→ {SET[expected][1]}" in found.evidence
    elif expected in GATES:
        assert found.evidence == evidence
    choices = [what for what in ("backend", "plan", "kernels") if what in planted]
    if expected in (*NEW, "flag"):
        assert all(f"{what}: " in found.evidence for what in choices if what != expected)


def test_evidence_names_kernels_that_are_gone_and_new() -> None:
    after = dataclasses.replace(FACTS, kernels=("other", "aten::clone"))
    found = cause_of(FACTS, after, (SETTINGS, SETTINGS), None)
    assert str(found) == "kernels: aten::mkldnn_convolution → other, aten::clone"


def test_commits_that_no_interpreter_has_are_not_named() -> None:
    code = Attribution("code", "no recorded property differs, and the commits are unknown")
    found = cause_of(FACTS, FACTS, (SETTINGS, SETTINGS), code)
    assert str(found) == "unknown: no recorded fact differs"


def test_a_flag_that_one_version_lacks_is_no_difference() -> None:
    known, lacks = ({**SETTINGS, "flag new": value} for value in ("True", "unknown"))
    other = dataclasses.replace(FACTS, backend="Slow2d")
    for pair in ((lacks, known), (known, lacks), (SETTINGS, known), (known, SETTINGS)):
        assert cause_of(FACTS, other, pair, None).cause == "backend"


def test_results_differ_only_if_both_repeat() -> None:
    other = dataclasses.replace(FACTS, bits="4567", error=3e-4)
    assert "1e-07 → 0.0003" in difference_of(FACTS, other)
    assert difference_of(FACTS, dataclasses.replace(other, error=None)).endswith("in their bits")
    assert not difference_of(FACTS, FACTS)
    assert not difference_of(FACTS, dataclasses.replace(other, bits=""))
