"""PyTorch's plans, read from the log of its cuDNN frontend, and the child process that asks."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convtime.conv.call import PASSES, ConvCall, Flags, TensorLayout
from convtime.conv.plan_choice import Plan, TensorDescriptor
from convtime.conv.plan_log import PlanLog, chosen_tags, log_of, parse_log
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec
from tests.helpers.waiting import wait_until


def tensor(letter: str, sizes: str, strides: str, data_type: str = '["HALF"]') -> str:
    return f"""[cudnn_frontend]                CUDNN_BACKEND_TENSOR_DESCRIPTOR :
                                   Datatype: {data_type}
                                   Id: {ord(letter)}
                                   Dims 4
                                   VectorCount: 1
                                   vectorDimension -1
                                   Dim [ {sizes} ]
                                   Str [ {strides} ]
                                   isVirtual: 0
                                   isByValue: 0
                                   Alignment: 16
                                   reorder_type: ["NONE"]
"""


GRAPH = (
    tensor("x", "2,4,9,11", "396,1,44,4")
    + tensor("y", "2,6,9,11", "594,1,66,6")
    + tensor("w", "6,4,3,3", "36,1,12,4", data_type='"HALF"')
    + '[cudnn_frontend] CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR : Datatype: ["FLOAT"] Mode: '
    '["CROSS_CORRELATION"] Num Dimensions: 2 PadLower [ 1,2 ] PadUpper [,1,2 ] '
    "Dilation [,3,4 ] Stride [,5,6]\n"
    "[cudnn_frontend] CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR has 1 operations.\n"
    "Tag: ConvFwd_\n"
)


def plan(tag: str, workspace: int = 0, numerical: str = "", behavior: str = "") -> str:
    return (
        f"[cudnn_frontend] CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : {tag}, "
        f"numeric_notes:[{numerical}] behavior_notes:[{behavior}] workSpaceSize: {workspace}\n"
    )


def test_a_plan_has_all_that_the_log_says() -> None:
    text = GRAPH + plan("ConvFwd_eng3_k2=1") + "noise\n" + plan(
        "ConvFwd_eng38_k2=8_k13=-1",
        4096,
        "CUDNN_NUMERICAL_NOTE_TENSOR_CORE,CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,",
        "CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION,",
    )  # fmt: skip
    log = parse_log(text)
    assert log == PlanLog(
        Plan(
            tag="ConvFwd_eng38_k2=8_k13=-1",
            source="heuristic",
            workspace_bytes=4096,
            numerical_notes=("TENSOR_CORE", "NONDETERMINISTIC"),
            behavior_notes=("RUNTIME_COMPILATION",),
            refused=("ConvFwd_eng3_k2=1",),
            x=TensorDescriptor((2, 4, 9, 11), (396, 1, 44, 4), 16, "float16"),
            w=TensorDescriptor((6, 4, 3, 3), (36, 1, 12, 4), 16, "float16"),
            y=TensorDescriptor((2, 6, 9, 11), (594, 1, 66, 6), 16, "float16"),
            compute_type="float32",
            padding=(1, 2),
            dilation=(3, 4),
            stride=(5, 6),
        ),
        unknown="",
    )
    assert log.plan is not None
    assert (log.plan.engine, log.plan.knobs) == (38, {2: 8, 13: -1})
    for each in (log, parse_log("")):
        assert codec.decode(PlanLog, json.loads(json.dumps(codec.encode(each)))) == each
    for written, dtype in (("BFLOAT16", "bfloat16"), ("FLOAT", "float32"), ("DOUBLE", "float64")):
        text = tensor("x", "2,4,9,11", "396,1,44,4", f'["{written}"]') + plan("ConvFwd_eng1")
        found = parse_log(text).plan
        assert found is not None
        assert found.x is not None
        assert found.x.dtype == dtype


@given(st.lists(st.integers(0, 4), max_size=8))
def test_the_last_plan_that_was_built_is_kept_and_the_others_were_refused(built: list[int]) -> None:
    tags = [f"ConvFwd_eng{index}" for index in built]
    log = parse_log(GRAPH + "".join(map(plan, tags)))
    if not built:
        assert log == PlanLog(unknown="PyTorch's log has no plan for this call")
        return
    assert log.plan is not None
    assert (log.plan.tag, log.plan.source, log.timed) == (tags[-1], "heuristic", ())
    assert sorted(log.plan.refused) == sorted({*tags} - {tags[-1]})


@given(st.lists(st.integers(90, 110) | st.none(), min_size=1, max_size=8))
def test_the_fastest_of_those_that_were_timed_is_kept_and_a_tie_is_not_guessed(
    times: list[int | None],
) -> None:
    """Times are in units of 0.1 µs; None: the plan failed."""
    tags = [f"ConvFwd_eng{index}" for index in range(len(times))]
    text = GRAPH + "".join(plan(tag, index) for index, tag in enumerate(tags))
    for tag, ticks in zip(tags, times, strict=True):
        took = "failed with CUDNN_STATUS_EXECUTION_FAILED" if ticks is None else "took "
        text += f"[cudnn_frontend] Plan {tag} {took}"
        text += "\n" if ticks is None else f"{f'{ticks * 1e-4:.4g}':>10}\n"
    log = parse_log(text)
    known = {tag: ticks for tag, ticks in zip(tags, times, strict=True) if ticks is not None}
    assert log.timed == tuple(known)
    if not known:
        assert log.plan is not None
        assert log.plan.tag == tags[-1]
        return
    fastest = [tag for tag, ticks in known.items() if ticks == min(known.values())]
    if len(fastest) == 1:
        assert log.plan is not None
        assert (log.plan.tag, log.plan.source) == (fastest[0], "benchmark")
        assert log.plan.workspace_bytes == tags.index(fastest[0])
        assert log.plan.refused == tuple(tag for tag in tags if tag not in known)
    else:
        assert log.plan is None
        assert " and ".join(fastest) in log.unknown


def test_each_operation_of_a_pass_keeps_its_last_or_its_fastest_plan() -> None:
    built = [plan(f"ConvBwd{which}_eng{index}") for which in ("Data", "Filter") for index in (1, 2)]
    assert chosen_tags("".join(built)) == ("ConvBwdData_eng2", "ConvBwdFilter_eng2")
    times = {"Data_eng1": 0.1, "Data_eng2": 0.2, "Filter_eng1": 0.2, "Filter_eng2": 0.1}
    took = [f"Plan ConvBwd{tag} took {time:>10}\n" for tag, time in times.items()]
    assert chosen_tags("".join(built + took)) == ("ConvBwdData_eng1", "ConvBwdFilter_eng2")
    assert chosen_tags("") == ()


def test_only_what_a_call_added_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert "wrote no log" in log_of(lambda: None, path).unknown
    path.write_text(plan("ConvFwd_eng1"))

    def call() -> None:
        with path.open("a") as file:
            file.write(plan("ConvFwd_eng2"))

    log = log_of(call, path)
    assert log.plan is not None
    assert (log.plan.tag, log.plan.refused) == ("ConvFwd_eng2", ())


CPU = torch.device("cpu")
CALL = ConvCall.of_layouts(
    "float32", TensorLayout((1, 2, 5, 5), (50, 25, 5, 1)), TensorLayout((3, 2, 3, 3), (18, 9, 3, 1))
)
# One number, but more elements than a copy of them could have bytes.
TOO_LARGE = ConvCall.of_layouts(
    "float32", TensorLayout((1, 2, 2**31 - 1, 2**30), (0, 0, 0, 0)), CALL.w
)


def test_the_child_answers_and_outlives_what_fails() -> None:
    with PlanOracle(CPU) as oracle:
        for log in oracle.ask(TOO_LARGE, PASSES).values():
            assert log.unknown.startswith("PyTorch's own call failed: Storage size calculation ov")
        pid = oracle.pid
        assert pid is not None
        answers = oracle.ask(CALL, ["fprop", "wgrad"])
        assert list(answers) == ["fprop", "wgrad"]
        for log in answers.values():  # a CPU's convolutions write no plans
            assert "wrote no log" in log.unknown
        assert oracle.pid == pid
    assert not Path(oracle._folder.name).exists()


@pytest.mark.thorough
def test_a_child_that_ended_is_replaced_and_why_it_gives_no_answer_is_said() -> None:
    with PlanOracle(CPU) as oracle:
        pids = set()
        for _ in range(2):
            assert "wrote no log" in oracle.ask(CALL, ["fprop"])["fprop"].unknown
            assert oracle.pid is not None
            pids.add(oracle.pid)
            os.kill(oracle.pid, signal.SIGKILL)
            wait_until(lambda: oracle.pid is None)
        assert len(pids) == 2
    with PlanOracle(torch.device("cuda:99")) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
    assert unknown.startswith("the child process that asks PyTorch ended with exit code 1 (")
    with PlanOracle(CPU, timeout=0.0) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
        assert unknown == "the child process that asks PyTorch gave no answer in 0 s"
        assert oracle.pid is None


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
        assert benchmarks or again == log
        for found in (log, again):
            if benchmarks and found.plan is None:  # its winner may be another each time, or a tie
                assert "its log gives the same time" in found.unknown
                continue
            assert found.plan is not None
            assert found.plan.source == ("benchmark" if benchmarks else "heuristic")
            assert found.plan.tag.startswith(f"{operation}eng")
            assert (found.plan.compute_type, found.plan.padding) == ("float32", (1, 1))
            assert found.plan.y is not None
            assert found.plan.y.sizes == (2, 64, 14, 14)
    x = TensorDescriptor((2, 32, 14, 14), (6272, 1, 448, 32), 2, "float16")
    assert first["fprop"].plan is None or first["fprop"].plan.x == x
