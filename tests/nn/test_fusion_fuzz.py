"""Sequences of benchmarks/fusion_fuzz.py on a CPU, and that it finds planted defects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fusion_fuzz
import pytest
import results
import torch
import torch._dynamo
from fusion_fuzz_parts import sequences
from fusion_fuzz_parts.architectures import ARCHITECTURES
from torch import nn

from convtime.nn import fuse

SEQUENCES = 12


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With small models, threads only wait; also, as the benchmark does, capture often."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.mark.parametrize("seed", range(SEQUENCES))
@pytest.mark.filterwarnings("ignore")
def test_a_sequence_computes_the_same(seed: int) -> None:
    row = sequences.run_sequence(seed, ("aot_eager",), torch.device("cpu"), length=3)
    assert not row["differences"], row


def not_a_copy(model: nn.Module, *, backend: str) -> nn.Module:
    assert backend
    model = model.eval()
    model.report = type("Report", (), {"fused": ()})  # type: ignore[assignment]
    return model


def scaled(model: nn.Module, *, backend: str) -> nn.Module:
    """With results that are wrong by a little."""
    model = fuse(model, backend=backend)
    model.register_forward_hook(lambda *given: _scale(given[2]))
    return model


def _scale(output: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda each: each * (1 + 1e-6), output)


@pytest.mark.parametrize("defect", [not_a_copy, scaled])
@pytest.mark.filterwarnings("ignore")
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, defect: Any) -> None:
    monkeypatch.setattr(sequences, "fuse", defect)
    monkeypatch.setattr(
        sequences,
        "draw_actions",
        lambda *_: ("train", "evaluate_copy", "train", "evaluate_old_copy"),
    )
    row = sequences.run_sequence(17, ("eager",), torch.device("cpu"))
    assert row["dtype"] == "float64"
    assert any("copy, result 0: off by" in each for each in row["differences"])


def test_rows_are_summed_up() -> None:
    rows: list[results.Row] = [
        {"key": "chains of A", "before": ["one", "one", "two"], "now": ["one", "three"]},
        *(
            {
                "key": f"{device} {seed}",
                "architecture": f"A{seed % 3}",
                "dtype": "float64",
                "backend": "eager",
                "compared": 5,
                "differences": ["training: no"] * (seed == 1),
            }
            for device, count in (("cpu", 4), ("cuda", 2))
            for seed in range(count)
        ),
    ]
    assert fusion_fuzz.summarise(rows) == {
        "sequences": 2,
        "architectures": 3,
        "differences": 2,
        "chains_kept": 0.5,
    }
    assert fusion_fuzz.table(rows).splitlines()[2:] == [
        "| cpu | float64 | eager | 4 | 20 | 1 |",
        "| cuda | float64 | eager | 2 | 10 | 1 |",
    ]
    assert fusion_fuzz.chains_table(rows).splitlines()[2:] == ["| A | 2 | 1 | 1 |"]


def test_sequences_cover_all_architectures_equally() -> None:
    assert fusion_fuzz.SEQUENCES % len(ARCHITECTURES) == 0
