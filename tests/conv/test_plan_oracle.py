"""The child process that asks PyTorch for its plans."""

from pathlib import Path

import pytest
import torch

from convtime.conv.call import PASSES, ConvCall, TensorLayout
from convtime.conv.flags import Flags
from convtime.conv.plan_choice import TensorDescriptor
from convtime.conv.plan_oracle import PlanOracle

CPU = torch.device("cpu")
CALL = ConvCall.of_layouts(
    "float32",
    TensorLayout((1, 2, 5, 5), (50, 25, 5, 1)),
    TensorLayout((3, 2, 3, 3), (18, 9, 3, 1)),
)
# One number, but more elements than a copy of them could have bytes.
TOO_LARGE = ConvCall.of_layouts(
    "float32", TensorLayout((1, 2, 2**31 - 1, 2**30), (0, 0, 0, 0)), CALL.w
)


def test_the_child_answers_and_outlives_what_fails() -> None:
    with PlanOracle(CPU) as oracle:
        for log in oracle.ask(TOO_LARGE, PASSES).values():
            assert log.unknown.startswith("PyTorch's own call failed: Storage size calculation ov")
        child = oracle._child
        assert child is not None
        answers = oracle.ask(CALL, ["fprop", "wgrad"])
        assert list(answers) == ["fprop", "wgrad"]
        for log in answers.values():  # a CPU's convolutions write no plans
            assert "wrote no log" in log.unknown
        assert oracle._child is child
        mapped = Path(f"/proc/{child.pid}/maps").read_text()
        assert "libtorch" in mapped
        assert "convtime" not in mapped  # whose frontend would start the log anew

        child.kill()
        child.wait()
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
        assert unknown == "the child process that asks PyTorch ended with status -9"
    assert not Path(oracle._folder.name).exists()


@pytest.mark.thorough
def test_a_child_that_ended_is_replaced() -> None:
    with PlanOracle(CPU) as oracle:
        for _ in range(2):
            assert "wrote no log" in oracle.ask(CALL, ["fprop"])["fprop"].unknown
            last = oracle._child
            assert last is not None
            last.kill()
            assert "status -9" in oracle.ask(CALL, ["fprop"])["fprop"].unknown
    assert oracle._child is None


@pytest.mark.thorough
def test_a_child_that_cannot_start_or_is_slow_says_why() -> None:
    with PlanOracle(torch.device("cuda:99")) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
    assert unknown.startswith("the child process that asks PyTorch ended with status 1: ")
    assert "Error" in unknown
    with PlanOracle(CPU, timeout=0.0) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
        assert unknown == "the child process that asks PyTorch gave no answer in 0 s"
        assert oracle._child is None


@pytest.mark.cuda
@pytest.mark.parametrize("benchmarks", [False, True])
def test_every_pass_has_a_plan_each_time(benchmarks: bool) -> None:
    call = ConvCall.of_layouts(
        dtype="float16",
        x=TensorLayout((2, 32, 14, 14), (6272, 1, 448, 32), 2),
        w=TensorLayout((64, 32, 3, 3), (288, 1, 96, 32)),
        padding=(1, 1),
        flags=Flags(benchmark=benchmarks),
    )
    with PlanOracle(torch.device("cuda")) as oracle:
        first, second = (oracle.ask(call, PASSES) for _ in range(2))
    operations = ("ConvFwd_", "ConvBwdData_", "ConvBwdFilter_")
    for log, again, operation in zip(first.values(), second.values(), operations, strict=True):
        for found in (log, again):
            if benchmarks and found.plan is None:  # its winner may be another each time, or a tie
                assert "its log gives the same time" in found.unknown
                continue
            assert found.plan is not None
            assert found.plan.source == ("benchmark" if benchmarks else "heuristic")
            assert found.plan.tag.startswith(f"{operation}eng")
            assert found.plan.compute_type == "float32"
            assert found.plan.y is not None
            assert found.plan.y.sizes == (2, 64, 14, 14)
            assert found.plan.padding == (1, 1)
        if not benchmarks:
            assert again == log
    x = TensorDescriptor((2, 32, 14, 14), (6272, 1, 448, 32), 2, "float16")
    assert first["fprop"].plan is None or first["fprop"].plan.x == x
