"""Names of metrics on those of a real chip, and what is made of the counts of each launch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.counting.counters import adds_up, make_counters
from convtime.counting.metrics import (
    DURATION,
    GROUPS,
    Wanted,
    describe,
    names_of,
    resolve,
    split_names,
)
from convtime.counting.nvprof import NVPROF
from tests.helpers.gh100 import Gh100

GH100 = Gh100()
HIT_RATE = "lts__t_sector_hit_rate.pct"
READ = "dram__bytes_read.sum"


def test_groups_and_names_of_nvprofs_are_of_metrics_that_there_are():
    for group, members in GROUPS.items():
        wanted = resolve([group], GH100)
        assert wanted.left_out == {}
        assert wanted.metrics[0] == DURATION
        assert {*wanted.metrics} == {DURATION, *(names[0] for names in members.metrics.values())}
    for old, terms in NVPROF.items():
        wanted = resolve([old], GH100)
        assert wanted.translated == {old: dict(terms)}
        assert {*wanted.metrics} == {DURATION, *terms}


def test_names_of_nvprofs_mean_what_nvidias_table_says():
    added = "smsp__sass_thread_inst_executed_op_f{}_pred_on.sum".format
    for old, today in {
        "dram_write_transactions": {"dram__sectors_write.sum": 1},
        "dram_read_throughput": {"dram__bytes_read.sum.per_second": 1},
        "achieved_occupancy": {"sm__warps_active.avg.pct_of_peak_sustained_active": 0.01},
        "sm_efficiency": {"smsp__cycles_active.avg.pct_of_peak_sustained_elapsed": 1},
        "issue_slot_utilization": {"smsp__issue_active.avg.pct_of_peak_sustained_active": 1},
        "gld_efficiency": {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": 1},
        "dram_utilization": {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.1},
        "flop_count_sp": {added("add"): 1, added("mul"): 1, added("fma"): 2},
    }.items():
        assert NVPROF[old] == today
    for old, terms in NVPROF.items():  # levels from 0 to 10, except for the share above
        if old.endswith("_utilization") and old != "issue_slot_utilization":
            assert [*terms.values()] == [0.1]


def test_a_metric_without_a_suffix_is_its_usual_value_and_counted_once_whatever_it_is_called():
    metrics = resolve(
        ["dram__bytes_read", "sm__throughput", "lts__t_sector_hit_rate"], GH100
    ).metrics
    assert metrics[1:] == (
        READ,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "lts__t_sector_hit_rate.ratio",
    )
    wanted = resolve(["dram", "dram_write_transactions", "dram__sectors_write.sum"], GH100)
    assert len(set(wanted.metrics)) == len(wanted.metrics) == 1 + len(GROUPS["dram"].metrics)


def test_all_metrics_are_those_that_the_hardware_counts_for_a_kernel():
    metrics = resolve(["all"], GH100).metrics
    assert READ in metrics
    assert len(metrics) > 3000
    assert not [name for name in metrics if name.startswith(("pcie__", "nvlrx__"))]
    assert not [name for name in metrics if "_sass_" in name]


def test_metrics_of_a_group_may_be_missing_or_have_another_name():
    lacking = Gh100(READ, "sm__throughput.avg.pct_of_peak_sustained_elapsed")
    lacking._units["dram__bytes_op_read"] = ("dram__bytes_op_read.sum", "byte", "dram")
    wanted = resolve(["dram", "sm"], lacking)
    assert "dram__bytes_op_read.sum" in wanted.metrics
    assert READ not in wanted.metrics
    assert wanted.left_out == {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "cuda:0 does not count it"
    }
    with pytest.raises(ValueError, match=r"nvprof's 'dram_read_bytes' is now dram__bytes_read.sum"):
        resolve(["dram_read_bytes"], lacking)


def test_a_wrong_name_is_told_with_the_nearest():
    for asked, said in (
        ("dramm", "no metric or group 'dramm'; did you mean dram"),
        ("dram_write_transaction", "did you mean dram_write_transactions"),
        ("xyzzy", "see convtime.counter_names()"),
        ("", "at least one metric or group"),
        ([], "at least one metric or group"),
        ("dram__bytes_raed.sum", "on cuda:0; did you mean dram__bytes_read.sum"),
        ("dram__bytes_read.total", "there is no metric or group 'dram__bytes_read.total' on"),
        ("pcie__read_bytes.sum", "counts a link of the whole device"),
    ):
        with pytest.raises(ValueError, match=".") as raised:
            resolve(split_names(asked), GH100)
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)
    for wrong in (3, None, b"dram", ["dram", 3]):
        with pytest.raises(TypeError, match="metrics must be names, got"):
            split_names(wrong)
    assert split_names("dram, l2,,dram") == split_names(["dram", "l2"]) == ("dram", "l2")


def test_units_are_those_that_are_shown():
    asked = ["time", "dram", "l2", "lts__t_requests", "sm__inst_executed.avg.per_cycle_active"]
    wanted = resolve(asked, GH100).metrics
    units = {name: (unit, scale) for name, (_, unit, scale) in describe(wanted, GH100).items()}
    for name, unit in {
        DURATION: ("s", 1e-9),
        READ: ("byte", 1),
        "dram__bytes.sum.per_second": ("byte/s", 1),
        "sm__cycles_elapsed.max": ("cycle", 1),
        "lts__t_sectors.sum": ("sector", 1),
        "lts__t_requests.sum": ("request", 1),
        HIT_RATE: ("%", 1),
    }.items():
        assert units[name] == unit


def test_the_list_of_names_begins_with_the_groups():
    listed = names_of(GH100)
    grouped = [each for each in listed if each.group]
    assert listed[: len(grouped)] == tuple(grouped)
    assert {each.group for each in grouped} == set(GROUPS)
    assert len(listed) > 3000
    assert 10 < len(names_of(GH100, "TENSOR")) < 200
    assert str(names_of(GH100, READ)[0]) == "dram__bytes_read.sum [byte]: bytes read"


LAUNCHES = [(name, (size, 1, 1), (64, 1, 1)) for name in ("copy", "scale") for size in (4, 8)]
METRICS = (DURATION, READ, HIT_RATE)
WANTED = Wanted(METRICS, {"dram_read_bytes": {READ: 1.0}, "both": {READ: 2.0, HIT_RATE: 0.1}}, {})
DESCRIBED = describe(METRICS, Gh100())


def made(values, launches, unnamed=""):
    counted = {"launches": launches, "unnamed": unnamed, "passes": 2, "values": values}
    facts = {"name": "op", "method": "", "replay": "call", "cache": "cold", "device": "cuda:0"}
    return make_counters(counted, DESCRIBED, translated=WANTED.translated, **facts)


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
                launch_values, min_size=1 if unnamed and repeat else len(names), max_size=len(names)
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
