"""What epilogue.py makes of its rows, without a GPU."""

import epilogue
import pytest
import results

GOALS = results.load_goals()["epilogue"]


def row(convtime, separate, compiled):
    seconds = {
        "convtime": convtime,
        "separate": separate,
        "compiled": compiled,
    }
    return {
        "key": f"{convtime} {separate}",
        "layer": "layer1.0.conv1",
        "label": "64×64×56×56 → 64, 1×1",
        "epilogue": "bias, ReLU",
        "dtype": "float16",
        "layout": "nhwc",
        "seconds": seconds,
        "first_calls": {"convtime": 0.5, "separate": 1.0, "compiled": 12.0},
    }


def test_the_summary_is_of_geometric_means():
    summary = epilogue.summarise([row(10e-6, 20e-6, 10e-6), row(10e-6, 80e-6, 40e-6)])
    assert set(summary) == set(GOALS)
    assert summary == {
        "speedup_over_separate_geomean": pytest.approx(4.0),
        "speedup_over_compile_geomean": pytest.approx(2.0),
    }
    assert epilogue.summarise([]) == {}
