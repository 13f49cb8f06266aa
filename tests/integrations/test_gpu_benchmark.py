"""The fixture gpu_benchmark, by tests of tests that use it on a CPU."""

import json
from typing import Any

import pytest
import pytest_convtime

from tests.integrations.conftest import Runs, output

pytest_plugins = "pytester"

pytest.importorskip("pytest_benchmark")
BENCHMARKED = """
import pytest

@pytest.mark.benchmark(group="sorting", max_time=0.01, min_rounds=7)
@pytest.mark.parametrize("count", [10, 100])
def test_sort(gpu_benchmark, count):
    gpu_benchmark.extra_info["count"] = count
    assert gpu_benchmark(sorted, list(range(count)), key=lambda x: -x)[0] == count - 1
    assert gpu_benchmark.stats.stats.rounds >= 7
"""


def test_gpu_benchmark_feeds_pytest_benchmark(run: Runs, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BENCHMARKED)
    result = run("--benchmark-json=all.json", "--benchmark-save=first")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*benchmark 'sorting': 2 tests*"])
    document = json.loads((pytester.path / "all.json").read_text(encoding="utf-8"))
    assert "torch" in document["machine_info"]
    for benchmark, count in zip(document["benchmarks"], (10, 100), strict=True):
        info = benchmark["extra_info"]
        assert benchmark["params"] == {"count": count}
        assert (info["count"], info["method"], info["device"]) == (count, "cpu", "cpu")
        assert benchmark["stats"]["data"] == info["convtime"]["seconds"]
        assert len(info["median_interval"]) == 2
    compared = run("--benchmark-compare", "--benchmark-compare-fail=median:99999%")
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*test_sort?10? (NOW)*"])
    # A whole number of its files can be compared with, too.
    ours = run("--convtime-against", "all.json")
    assert ours.ret == 0
    assert "2 compared" in output(ours)


def test_machine_info_names_gpus_and_driver(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    for name, answer in answers.items():
        monkeypatch.setitem(gpu._OTHERS, name, answer)
    monkeypatch.setitem(gpu.answers, "Name", "NVIDIA H200")
    info: dict[str, Any] = {}
    pytest_convtime._WithPytestBenchmark().pytest_benchmark_update_machine_info(info)
    assert info["gpus"] == ["NVIDIA H200"] * 2
    assert info["gpu_driver"] == "580.1"
    monkeypatch.setitem(gpu.failures, "Init", gpu.NVMLError_DriverNotLoaded())
    assert pytest_convtime._gpus() == {}


@pytest.mark.cuda
def test_gpu_benchmark_has_the_devices_own_times(run: Runs, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_relu(gpu_benchmark):
            gpu_benchmark(torch.relu, torch.randn(1 << 20, device="cuda"))
        """
    )
    result = run("--benchmark-json=all.json", "--convtime-save=main")
    result.assert_outcomes(passed=1)
    document = json.loads((pytester.path / "all.json").read_text(encoding="utf-8"))
    (benchmark,) = document["benchmarks"]
    info = benchmark["extra_info"]
    assert (info["method"], info["cache"]) == ("kernel", "cold")
    assert info["gpu"] in document["machine_info"]["gpus"]
    assert 500 < info["sm_clock_mhz"] < 5000
    assert 1e-6 < benchmark["stats"]["median"] < 1e-4
    again = run("--convtime-against=main", "--convtime-fail-on=slower:10%,missing")
    assert again.ret == 0


def test_pedantic_is_as_its_users_know_it(run: Runs, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_counts(gpu_benchmark):
            calls = []
            assert gpu_benchmark.pedantic(calls.append, (1,), rounds=8, iterations=3) is None
            assert gpu_benchmark.stats.stats.rounds == 8
            assert gpu_benchmark.stats.iterations == 3
            assert len(calls) >= 24

        def test_setup(gpu_benchmark):
            made, torn = [], []
            def setup():
                made.append([3, 1, 2])
                return (made[-1],), {"reverse": True}
            def target(values, reverse):
                assert values == [3, 1, 2]
                values.sort(reverse=reverse)
                return values
            def teardown(values, reverse):
                assert values == [3, 2, 1]
                torn.append(values)
            found = gpu_benchmark.pedantic(target, setup=setup, teardown=teardown, rounds=9)
            assert found == [3, 2, 1]
            assert gpu_benchmark.stats.stats.rounds == 9
            assert torn == made

        def test_arguments_twice(gpu_benchmark):
            with pytest.raises(TypeError, match="must not return arguments"):
                gpu_benchmark.pedantic(int, ("1",), setup=lambda: (("2",), {}), rounds=2)

        def test_wrong(gpu_benchmark):
            with pytest.raises(ValueError, match="rounds must be a whole number, 1 or more, got 0"):
                gpu_benchmark.pedantic(int, rounds=0)
            with pytest.raises(ValueError, match="iterations must be 1 if there is a setup"):
                gpu_benchmark.pedantic(int, setup=int, rounds=1, iterations=2)
            gpu_benchmark(int)
            with pytest.raises(RuntimeError, match="used only once in a test"):
                gpu_benchmark(int)
        """
    )
    run().assert_outcomes(passed=4)


def test_gpu_benchmark_can_be_switched_off_as_benchmark_can(
    run: Runs, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(gpu_benchmark): assert gpu_benchmark(int, '7') == 7")
    run("--benchmark-disable").assert_outcomes(passed=1)
    run("--benchmark-skip").assert_outcomes(skipped=1)
    without = run("-p", "no:benchmark")
    without.assert_outcomes(errors=1)
    assert "pytest-benchmark, which is not installed or is disabled" in output(without)


@pytest.mark.thorough
def test_histograms_are_drawn_of_our_samples(run: Runs, pytester: pytest.Pytester) -> None:
    pytest.importorskip("pygal")
    pytester.makepyfile("def test_one(gpu_benchmark): gpu_benchmark.pedantic(int, rounds=7)")
    run("--benchmark-histogram=drawn").assert_outcomes(passed=1)
    assert "test_one - 7 rounds" in (pytester.path / "drawn.svg").read_text(encoding="utf-8")
