"""What is a number or two is a sentence, and a choice of a plan a line."""

import convtime
from convtime.device.clock_trace import ClockReading
from convtime.timing.comparison import Agreement, Interference
from convtime.timing.measurement import Ceilings
from convtime.timing.verdict import Judgement, Ratio

SENTENCES_OF: list[tuple[object, str]] = [
    (Agreement(True, "the same numbers"), "same result: the same numbers"),
    (Agreement(False, "off by 3", 3.0), "OTHER RESULT: off by 3"),
    (Agreement(None, "it raised"), "same result not known: it raised"),
    (Interference(1.5, 0.8, "it takes more"), "interference: it takes more"),
    (Ceilings(4.3e12, 7.9e14, "bfloat16"), "copy 4,300 GB/s, bfloat16 matmul 790 TFLOP/s"),
    (
        ClockReading(0.25, 1.98e9, 3.2e9, 690.4, 45.0, ("sw_power_cap",)),
        "after 0.25 s: SM clock 1980 MHz, memory clock 3200 MHz, 690 W, 45 °C, throttled by "
        "sw_power_cap",
    ),
    (ClockReading(0.0, None, None, None, None, None), "after 0 s: nothing was told"),
    (
        Judgement("slower", Ratio(1.5, 1.4, 1.6), None, None, "", 0.1),
        "slower: ratio 1.5000 [1.4000, 1.6000]",
    ),
    (
        Judgement("uncertain", Ratio(1.0, 0.9, 1.1), None, "wide-interval", "why", 0.1),
        "uncertain: ratio 1.0000 [0.9000, 1.1000]; why",
    ),
]


def test_values_are_sentences() -> None:
    for value, sentence in SENTENCES_OF:
        assert str(value) == sentence
        assert repr(value).startswith(f"{type(value).__name__}(")


# Without the extension for IPython, whose module needs IPython.
PUBLIC = [getattr(convtime, name) for name in convtime.__all__ if "ipython" not in name]
PUBLIC += [getattr(convtime.conv, name) for name in convtime.conv.__all__]
RESULTS = [convtime.conv.PlanChoice, convtime.nn.Fusion, convtime.nn.Replacement]
# One or two numbers are one sentence.
SENTENCES = (convtime.Energy, convtime.PeakMemory)
RESULTS += [each for each in PUBLIC if hasattr(each, "to_dict") and each not in SENTENCES]


def test_every_result_shows_itself_in_all_ways() -> None:
    assert {convtime.Measurement, convtime.conv.Explanation, convtime.ClockTrace} <= {*RESULTS}
    for result in RESULTS:
        own = set().union(*(vars(each) for each in result.__mro__ if each is not object))
        assert {"__str__", "__repr__", "details", "_repr_html_"} <= own, result
