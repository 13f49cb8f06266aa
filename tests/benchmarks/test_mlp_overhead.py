"""What mlp_overhead.py makes of its rows, without a GPU."""

import mlp_overhead
import pytest
import results

GOALS = results.load_goals()["mlp_overhead"]


def row(net, *microseconds):
    stages = zip(mlp_overhead.STAGES, microseconds, strict=True)
    return {"key": net, "seconds": {stage: 1e-6 * time for stage, time in stages}}


ROWS = [
    row("64 × 4, 1024", 1000, 900, 950, 700, 600, 50, 12, 10),
    row("4096 × 4, 8192", 60_000, 9000, 4500, 4400, 4400, 4300, 4500, 4200),
]


def test_each_share_is_over_the_first_stage():
    small, large = (mlp_overhead.shares(row["seconds"]) for row in ROWS)
    assert small["TF32"] == pytest.approx(0.1)
    assert small["float16"] == pytest.approx(-0.05)
    assert set(small) == set(mlp_overhead.STAGES[1:])
    for found, row in ((small, ROWS[0]), (large, ROWS[1])):
        seconds = list(row["seconds"].values())
        assert sum(found.values()) == pytest.approx(1 - seconds[-1] / seconds[0])


def test_the_smallest_net_and_the_largest_are_summed_up():
    summary = mlp_overhead.summarise(ROWS)
    assert summary["nets"] == 2
    assert summary["smallest_max_autotune_over_convtime"] == pytest.approx(60)
    assert summary["largest_max_autotune_over_convtime"] == pytest.approx(4400 / 4200)
    assert summary["largest_float32_over_convtime"] == pytest.approx(60_000 / 4200)
    assert set(GOALS) <= set(summary)
    assert mlp_overhead.summarise([]) == {"nets": 0}
