"""What packaging_benchmark.py makes of its rows, and one pair of imports."""

import packaging_benchmark
import pytest
import results
from packaging_parts import installing
from packaging_parts.uses import USES

GOALS = results.load_goals()["packaging"]


def pairs(count=packaging_benchmark.PAIRS):
    """convtime costs 1, 2, 3, … ms over torch, which itself takes the less the later it is."""
    return [
        {"key": f"pair {number}", "torch_s": 3 - 0.1 * number, "convtime_s": 3 - 0.099 * number}
        | {"after_torch_s": 0.002 * number, "plugin_s": 0.5 + 0.001 * number, "no_plugin_s": 0.5}
        for number in range(1, count + 1)
    ]


def test_the_summary_is_the_median_of_convtimes_part():
    assert packaging_benchmark.summarise(pairs()) == {
        "import_over_torch_s": pytest.approx(0.022),
        "idle_plugin_ms": pytest.approx(11),
    }


def test_all_parts_together_answer_each_goal():
    seconds = {"empty_first_s": 0.5, "filled_first_s": 0.004}
    uses = [{"key": use, **seconds, "filled_second_s": 0.001} for use in USES]
    uses[3] |= {"empty_first_s": 0.7, "filled_first_s": 0.011}
    uses[0]["empty_first_s"] = 0.9  # time_op
    wheel = {"key": "wheel", "wheel_mb": 9.0, "wheel_install_s": 3.0, "wheel_torches": 2}
    installed = {"key": "install", "library_mb": 4.0, **installing.phases(LOG)}
    rows = [*pairs(), *uses, wheel, installed]
    summary = packaging_benchmark.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary["kernels_first_use_s"] == 0.7
    assert summary["kernels_cached_use_ms"] == pytest.approx(11)
    assert summary["first_time_op_empty_cache_s"] == 0.9
    assert summary["compile_s"] == 60
    assert summary["main_job_cpu_s"] == 30
    assert summary["first_command_s"] == 230
    assert "| compile | 60.0 |" in packaging_benchmark.table(rows)
    assert packaging_benchmark.summarise([*pairs(), *uses[1:4]]).keys() == {
        "import_over_torch_s",
        "idle_plugin_ms",
    }


# As pip 23 prints it to a pipe, shortened.
LOG = [
    (1.0, "Processing /home/user/convtime"),
    (1.5, "  Installing build dependencies: started"),
    (60.0, "  Installing backend dependencies: finished with status 'done'"),
    (61.0, "  Preparing metadata (pyproject.toml): finished with status 'done'"),
    (62.0, "Collecting torch==2.15.*"),
    (70.0, "  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (700 MB)"),
    (100.0, "Building wheels for collected packages: convtime"),
    (101.0, "  Building wheel for convtime (pyproject.toml): started"),
    (131.0, "  Building wheel for convtime (pyproject.toml): still running..."),
    (161.0, "  Building wheel for convtime (pyproject.toml): finished with status 'done'"),
    (161.0, "Installing collected packages: torch, convtime"),
    (200.0, "Successfully installed convtime-0.1.0 torch-2.15.0"),
    (203.0, "AMD EPYC; float32, nchw; torch 2.15.0"),
    (204.0, "layer     N×C×size → K, kernel"),
    (205.0, "conv1     1×3×224×224 → 64, 7×7 s2 p3"),
    (229.0, "23 distinct layers"),
    (230.0, ""),
]


def test_the_phases_of_the_first_command_are_those_of_pips_lines():
    assert installing.phases(LOG) == {
        "build_dependencies_s": 60,
        "resolve_and_download_s": 40,
        "compile_s": 60,
        "install_s": 39,
        "main_job_s": 30,
        "first_row_s": 5,
        "first_command_s": 230,
    }


def test_phases_that_pip_skips_hide_no_others():
    """Where torch is installed, nothing is collected."""
    log = [line for line in LOG if not line[1].startswith(("Collecting", "  Preparing"))]
    assert "resolve_and_download_s" not in installing.phases(log)
    assert installing.phases(log)["build_dependencies_s"] == 100
    with pytest.raises(ValueError, match="no beginning of main_job_s"):
        installing.phases([line for line in LOG if "Successfully" not in line[1]])


def test_the_first_command_is_readmes():
    assert installing.readme_command(1) == "pip install . && convtime conv\n"


def test_a_file_from_before_the_plugin_says_nothing_of_it():
    rows = [{name: value for name, value in row.items() if "plugin" not in name} for row in pairs()]
    assert set(packaging_benchmark.summarise(rows)) == {"import_over_torch_s"}


def test_there_are_pairs_enough_or_no_summary():
    assert packaging_benchmark.PAIRS >= 15
    assert packaging_benchmark.summarise(pairs(packaging_benchmark.PAIRS - 1)) == {}


def test_an_import_that_fails_says_why():
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        packaging_benchmark.measure_imports(["json", "no_such_module"])
