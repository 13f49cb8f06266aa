"""What is made of the counts of each launch, compared with numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.counting.groups import DURATION
from convtime.counting.names import Wanted, describe
from convtime.counting.summing import adds_up, make_counters
from tests.helpers.gh100 import Gh100

HIT_RATE = "lts__t_sector_hit_rate.pct"
READ = "dram__bytes_read.sum"
LAUNCHES = [(name, (size, 1, 1), (64, 1, 1)) for name in ("copy", "scale") for size in (4, 8)]
METRICS = (DURATION, READ, HIT_RATE)
WANTED = Wanted(METRICS, {"dram_read_bytes": {READ: 1.0}, "both": {READ: 2.0, HIT_RATE: 0.1}}, {})
DESCRIBED = describe(METRICS, Gh100())


def made(values, launches, unnamed=""):
    counted = {"launches": launches, "unnamed": unnamed, "passes": 2, "values": values}
    facts = {"name": "op", "method": "", "replay": "call", "cache": "cold", "device": "cuda:0"}
    return make_counters(counted, WANTED, DESCRIBED, **facts)


counts = st.one_of(st.none(), st.integers(0, 4000))
launch_values = st.tuples(counts, counts, counts)


def total(launches, column, of_kernel):
    """Of an array of launches and metrics, where nan is what the hardware does not say."""
    values, seconds = launches[:, column], launches[:, 0]
    if METRICS[column] != HIT_RATE:
        return np.mean(values) if of_kernel else np.sum(values)
    known = ~np.isnan(values) & (seconds > 0)
    return np.average(values[known], weights=seconds[known]) if known.any() else np.nan


def median(values):
    known = [value for value in values if not np.isnan(value)]
    return pytest.approx(np.median(known)) if known else None


@settings(max_examples=150)
@given(
    names=st.lists(st.sampled_from(LAUNCHES), min_size=1, max_size=5),
    repeats=st.integers(1, 4),
    unnamed=st.booleans(),
    data=st.data(),
)
def test_counts_are_added_and_rates_are_means_over_time(names, repeats, unnamed, data):
    values = [
        data.draw(
            st.lists(
                launch_values,
                min_size=1 if unnamed and repeat else len(names),
                max_size=len(names),
            )
        )
        for repeat in range(repeats)
    ]
    counters = made(values, names, "calls differ" if unnamed else "")
    arrays = [np.array(each, dtype=float) * [1e-9, 1, 1] for each in values]
    kernels = [[number] for number in range(len(names))]
    if not unnamed:
        different = [*dict.fromkeys(names)]
        kernels = [[at for at, each in enumerate(names) if each == name] for name in different]
        assert [(each.name, each.grid, each.block) for each in counters.kernels] == different
    assert [each.launches for each in counters.kernels] == [*map(len, kernels)]
    for column, metric in enumerate(METRICS):
        totals = [total(launches, column, False) for launches in arrays]
        for sample, expected in zip(counters.samples[metric], totals, strict=True):
            assert (sample is None) == np.isnan(expected)
            assert sample is None or sample == pytest.approx(expected)
        assert counters[metric] == median(totals)
        for kernel, places in zip(counters.kernels, kernels, strict=True):
            own = [array[[at for at in places if at < len(array)]] for array in arrays]
            assert kernel.values[metric] == median(
                [total(launches, column, True) for launches in own if len(launches)]
            )
    assert counters["dram_read_bytes"] == counters[READ]
    if None in (counters[READ], counters[HIT_RATE]):
        assert counters["both"] is None
    else:
        assert counters["both"] == pytest.approx(2 * counters[READ] + counters[HIT_RATE] / 10)
    with pytest.raises(KeyError, match="dram__bytes_write"):
        counters["dram__bytes_write.sum"]


def test_kernels_whose_names_are_not_known_are_numbered():
    counters = made([[(1000, 100, 50), (3000, 10, 90)]], [], "calls do not launch the same kernels")
    assert [each.name for each in counters.kernels] == ["kernel 1", "kernel 2"]
    assert "kernel names are unavailable: calls do not" in str(counters)


def test_what_adds_up():
    for metric, does in {
        READ: True,
        "sm__cycles_elapsed.max": True,
        "sm__cycles_elapsed.min": True,
        "sm__cycles_elapsed.avg": True,
        HIT_RATE: False,
        "dram__bytes.sum.per_second": False,
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": False,
        "lts__t_sector_hit_rate.ratio": False,
    }.items():
        assert adds_up(metric) is does
