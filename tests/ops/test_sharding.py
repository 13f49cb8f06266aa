"""Distributed tensors: computed in shards of the batch, and otherwise gathered."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from convtime import ops
from convtime.ops import sharding
from tests.helpers.op_calls import OPS, representative


def test_rules_keep_the_places_of_wanted_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: dict[Any, Any] = {}
    places = SimpleNamespace(Partial=lambda: "sum", Replicate=lambda: "all", Shard="{}".format)
    registers = SimpleNamespace(register_sharding=lambda op: partial(rules.__setitem__, op))
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", places)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental", registers)
    sharding._register_rules.__wrapped__()
    rule = rules[torch.ops.convtime.convolution_backward.default]
    for wanted in itertools.product((False, True), repeat=3):
        expected = [
            (
                [place if want else None for place, want in zip(places_of, wanted, strict=True)],
                [places_of[0], places_of[0], "all", None, None, None],
            )
            for places_of in (("all", "all", "all"), ("0", "sum", "sum"))
        ]
        assert rule("grad", "x", "w", [1], [0], wanted) == expected


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of two processes, of which this is one; the other is made up."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.device_mesh.init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def distributed(tensor: Any, mesh: Any, dim: int | None = None) -> Any:
    """The tensor in shards of this dimension, or whole on both."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Replicate() if dim is None else Shard(dim)
    return distribute_tensor(tensor, mesh, [placement], src_data_rank=None)


@pytest.mark.thorough
@pytest.mark.parametrize("op", [*OPS, "conv2d_epilogue"])
def test_shards_of_the_batch_are_computed(op: str, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    problem = representative(op.removesuffix("_epilogue"))
    x, w, b = problem.tensors("cpu")
    assert x is not None
    _, theirs = problem.functions
    z = torch.randn_like(theirs(x, w, b, **problem.arguments))
    for bias, other in itertools.product((b, None), (z, None) if "epilogue" in op else (None,)):
        leaves = [
            distributed(tensor, mesh).requires_grad_() for tensor in (w, bias) if tensor is not None
        ]
        addend = {} if other is None else {"other": distributed(other, mesh, 0)}
        call = partial(getattr(ops, op), distributed(x, mesh, 0), *leaves, **problem.arguments)
        output: Any = call(**addend)
        expected = theirs(x[:1], w, bias, **problem.arguments)
        if "epilogue" in op:
            expected = F.relu(expected if other is None else expected + other[:1])
        assert output.placements == (Shard(0),)
        torch.testing.assert_close(output.to_local(), expected)
        gradients: Any = torch.autograd.grad(output.sum(), leaves)
        assert all(gradient.placements[0].is_partial() for gradient in gradients)


@pytest.mark.thorough
def test_tensors_that_are_sharded_otherwise_are_gathered(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate

    x, w = torch.randn(4, 9, 8), torch.randn(6, 4, 3, 3)
    output: Any = ops.conv2d(distributed(x, mesh), distributed(w, mesh))
    assert output.placements == (Replicate(),)
    assert torch.equal(output.to_local(), F.conv2d(x, w))
    columns = distributed(torch.ones(2, 4, 9, 8), mesh, 3)
    assert ops.conv2d(columns, distributed(w, mesh)).shape == (2, 6, 7, 6)


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d"])
def test_distributed_tensors_are_told_apart_by_the_numbers(op: str, mesh: Any) -> None:
    x, w = torch.ones(2, 4, 9, 9), torch.ones(4, 4, 3, 3)
    for numbers in ({}, {"padding": 1}, {"stride": 2}, {"stride": 2, "dilation": 2}):
        ours = getattr(ops, op)(distributed(x, mesh, 0), distributed(w, mesh), **numbers)
        assert ours.shape == getattr(F, op)(x, w, **numbers).shape


COMPILED = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
import convtime.ops
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.ones(2, 3, 5, 5), mesh, [Shard(0)], src_data_rank=None)
w = distribute_tensor(torch.ones(4, 3, 3, 3), mesh, [Replicate()], src_data_rank=None)
output = torch.compile(convtime.ops.conv2d, backend="aot_eager", fullgraph=True)(x, w)
assert output.placements == (Shard(0),)
"""


@pytest.mark.thorough
def test_distributed_tensors_compile_before_any_eager_call() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300)
