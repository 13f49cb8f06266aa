"""Sequences of benchmarks/fusion_fuzz on a CPU, and that it finds planted defects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from fusion_fuzz import sequences
from torch import nn

from convtime.nn import fuse

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def capturing_often() -> Iterator[None]:
    """As the benchmark does."""
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_computes_the_same(seed: int) -> None:
    row = sequences.run_sequence(seed, ("aot_eager",), torch.device("cpu"), length=3)
    assert not row["differences"], row


@pytest.mark.parametrize("defect", ["no copy", "scaled"])
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    def defective(model: nn.Module, *, backend: str) -> Any:
        if defect == "no copy":
            model.report = type("Report", (), {"fused": ()})  # type: ignore[assignment]
            return model.eval()
        fused = fuse(model, backend=backend)
        fused.register_forward_hook(
            lambda *given: torch.utils._pytree.tree_map(lambda each: each * (1 + 1e-6), given[2])
        )
        return fused

    monkeypatch.setattr(sequences, "fuse", defective)
    actions = ("train", "evaluate_copy", "train", "evaluate_old_copy")
    monkeypatch.setattr(sequences, "draw_actions", lambda *_: actions)
    row = sequences.run_sequence(17, ("eager",), torch.device("cpu"))
    assert row["dtype"] == "float64"
    assert any("copy, result 0: off by" in each for each in row["differences"])
