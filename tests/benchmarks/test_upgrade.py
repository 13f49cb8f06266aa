"""The benchmark of upgrades: what it plants, and what counts as found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import results
import torch
import upgrade
from upgrade_parts import planted_model, plants

GOALS = results.load_goals()["upgrade"]
TRUTH = {
    "seconds": {name: {"forward": 1e-4} for name in (*plants.GPU_SITES, *plants.CPU_SITES)},
    "rates": {"copy": 1e11, "cast": 1e11, "buffer": 1e11},
}


def plant(truth: float, verdict: str = "slower", cause: str | None = "plan") -> dict[str, Any]:
    return {"truth": truth, "verdict": verdict, "cause": cause, "right_cause": "plan"}


def rows(planted: list[dict[str, Any]], verdicts: list[str] | None = None) -> list[dict[str, Any]]:
    unchanged = {str(number): {"verdict": verdict} for number, verdict in enumerate(verdicts or [])}
    found = dict(zip(map(str, range(len(planted))), planted, strict=True))
    return [{"key": upgrade.RESNET50, "plants": found, "unchanged": unchanged, "seconds": 80.0}]


def test_goals_are_met_by_plants_that_are_found_with_their_causes():
    made = rows([plant(1.05)] * 25 + [plant(2.0)] * 25, ["same", "uncertain"] * 100)
    found = upgrade.summarise(made)
    assert set(found) == set(GOALS)
    for name, goal in GOALS.items():
        assert results.meets(found[name], goal), name


def test_large_plants_count_only_beside_as_many_small_ones():
    assert upgrade.summarise(rows([plant(1.05)] * 10 + [plant(2.0)] * 50))["planted"] == 20
    assert "planted" not in upgrade.summarise(rows([plant(1.019)]))


def test_a_plant_that_is_not_found_has_neither_its_layer_nor_its_cause():
    found = upgrade.summarise(rows([plant(1.05), plant(1.05, "same"), plant(1.05, cause="flag")]))
    assert found["right_layer"] == pytest.approx(2 / 3)
    assert found["right_cause"] == pytest.approx(1 / 3)


def test_false_alarms_are_unchanged_passes_that_are_found_changed():
    assert upgrade.summarise(rows([], ["slower", "faster", "same"]))["false_alarms"] == 2


@pytest.mark.parametrize("name", [*plants.ON_GPU])
def test_both_sides_of_the_groups_for_a_gpu_can_be_called(name, monkeypatch):
    monkeypatch.setattr(planted_model, "EXTRAS", dict.fromkeys(planted_model.EXTRAS, _nothing))
    group = plants.ON_GPU[name]
    old, new = group.old(), group.new(TRUTH, on_cpu=False)
    longest = max(math.prod(site["input"]) for site in group.sites.values())
    x = torch.empty(longest + longest // 8, device="meta")  # as measure.py has it
    for side in (old, new):
        model = planted_model.Sites(side["sites"]).to("meta")
        assert model(x).shape == (len(group.sites),)
    differing = {site for site in group.sites if old["sites"][site] != new["sites"][site]}
    assert differing == set(group.plants)
    told = {site for site in group.sites if group.cause(site) is not None}
    assert told == {*group.plants, *group.flagged} or group.blocks_engines


def _nothing(*_: object) -> None:
    pass


def test_small_plants_are_more_than_half_of_the_goal():
    small = [
        planted
        for group in plants.ON_GPU.values()
        for planted in group.plants.values()
        if planted in (*plants.EXTRA_CAUSES, "sizes", "padding")
    ]
    assert len(small) >= 28
    assert sum(map(len, (group.sites for group in plants.ON_GPU.values()))) >= 80


def test_extra_work_takes_its_share_of_the_time_and_leaves_the_backward_pass():
    group = plants.ON_GPU["layers"]
    new = group.new(TRUTH, on_cpu=False)["sites"]
    assert 0.04e-4 < new["conv3_half"]["extra"]["spin"] - 10e-6 < 0.08e-4
    assert 0.04e7 < new["conv3"]["extra"]["copy"] < 0.08e7
    assert group.unchanged("conv3", "backward")
    assert not group.unchanged("conv3", "forward")
    assert not group.unchanged("conv1", "backward")  # its padding is larger
    assert group.unchanged("avg_pool", "forward")


def test_engines_are_refused_by_operation_and_number():
    tags = {"conv": {"forward": ["ConvFwd_eng42_k2=2_k4=3"], "backward": ["ConvBwdData_eng4"]}}
    rules = plants.errata(tags)["rules"]
    assert [(rule["operation"], rule["engine"]) for rule in rules] == [
        ("ConvFwd", 42),
        ("ConvBwdData", 4),
    ]


def test_flags_are_set_by_their_names():
    was = torch.backends.cuda.matmul.allow_tf32
    planted_model.set_flag("cuda.matmul.allow_tf32", not was)
    assert torch.backends.cuda.matmul.allow_tf32 is not was
    planted_model.set_flag("cuda.matmul.allow_tf32", was)
