"""Reading PyTorch's plan log, and the child process that writes it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from convtime.conv import plan_oracle
from convtime.conv.call import PASSES, ConvCall, TensorLayout
from convtime.conv.flags import Flags
from convtime.conv.plan_log import PlanLog, parse_log
from convtime.conv.plan_oracle import PlanOracle
from convtime.results.plan import Plan, TensorDescriptor

CPU = torch.device("cpu")
PROBLEM = ConvCall(
    dtype="float32",
    x=TensorLayout((1, 2, 5, 5), (50, 25, 5, 1)),
    w=TensorLayout((3, 2, 3, 3), (18, 9, 3, 1)),
)


def tensor(number, sizes, strides, data_type='["HALF"]'):
    return f"""[cudnn_frontend]                CUDNN_BACKEND_TENSOR_DESCRIPTOR :
                                   Datatype: {data_type}
                                   Id: {number}
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
    tensor(ord("x"), "2,4,9,11", "396,1,44,4")
    + tensor(ord("y"), "2,6,9,11", "594,1,66,6")
    + tensor(ord("w"), "6,4,3,3", "36,1,12,4", data_type='"HALF"')
    + '[cudnn_frontend] CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR : Datatype: ["FLOAT"] Mode: '
    '["CROSS_CORRELATION"] Num Dimensions: 2 PadLower [ 1,2 ] PadUpper [,1,2 ] '
    "Dilation [,3,4 ] Stride [,5,6]\n"
    "[cudnn_frontend] CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR has 1 operations.\n"
    "Tag: ConvFwd_\n"
)


def plan(tag, workspace=0, numerical="", behavior=""):
    return (
        f"[cudnn_frontend] CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : {tag}, "
        f"numeric_notes:[{numerical}] behavior_notes:[{behavior}] workSpaceSize: {workspace}\n"
    )


def test_the_last_plan_that_was_built_is_the_chosen_one():
    text = GRAPH + plan("ConvFwd_eng3_k2=1") + "noise\n" + plan(
        "ConvFwd_eng38_k2=8_k13=-1",
        4096,
        "CUDNN_NUMERICAL_NOTE_TENSOR_CORE,CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,",
        "CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION,",
    )  # fmt: skip
    log = parse_log(text)
    assert log.chosen == Plan(
        "ConvFwd_eng38_k2=8_k13=-1",
        ("TENSOR_CORE", "NONDETERMINISTIC"),
        ("RUNTIME_COMPILATION",),
        4096,
    )
    assert (log.unknown, log.source, log.refused) == ("", "heuristic", ("ConvFwd_eng3_k2=1",))
    assert log.x == TensorDescriptor((2, 4, 9, 11), (396, 1, 44, 4), 16, "half")
    assert log.w == TensorDescriptor((6, 4, 3, 3), (36, 1, 12, 4), 16, "half")
    assert log.y.sizes == (2, 6, 9, 11)
    assert log.compute_type == "float"
    assert (log.padding, log.dilation, log.stride) == ((1, 2), (3, 4), (5, 6))


def test_a_plan_that_is_built_twice_is_refused_once():
    log = parse_log(plan("ConvFwd_eng1") + plan("ConvFwd_eng2") + plan("ConvFwd_eng1"))
    assert log.chosen.tag == "ConvFwd_eng1"
    assert log.refused == ("ConvFwd_eng2",)
    log = parse_log(plan("ConvFwd_eng1") + plan("ConvFwd_eng1") + plan("ConvFwd_eng2"))
    assert (log.chosen.tag, log.refused) == ("ConvFwd_eng2", ("ConvFwd_eng1",))


def benchmark_log(*times):
    built = "".join(plan(f"ConvFwd_eng{index}", index) for index in range(len(times)))
    return built + "".join(
        f"[cudnn_frontend] Plan ConvFwd_eng{index} "
        + (f"took {time:>10}\n" if time else "failed with CUDNN_STATUS_EXECUTION_FAILED\n")
        for index, time in enumerate(times)
    )


def test_benchmarking_chooses_the_fastest():
    log = parse_log(benchmark_log("0.0512", "", "0.0113", "1.2e-02"))
    assert log.chosen == Plan("ConvFwd_eng2", (), (), 2)
    assert (log.source, log.refused) == ("benchmark", ("ConvFwd_eng1",))


def test_a_tie_is_not_guessed():
    log = parse_log(benchmark_log("0.02", "0.01", "0.01"))
    assert log.chosen is None
    assert "ConvFwd_eng1 and ConvFwd_eng2" in log.unknown


def test_a_log_without_a_plan_says_so():
    assert parse_log("") == PlanLog(unknown="PyTorch's log has no plan for this call")
    assert parse_log(GRAPH).x is not None


def test_a_log_survives_json():
    log = parse_log(GRAPH + plan("ConvFwd_eng3_k2=1"))
    assert PlanLog.from_dict(json.loads(json.dumps(dataclasses.asdict(log)))) == log


def test_only_what_a_call_added_is_read(tmp_path):
    path = tmp_path / "log"
    path.write_text(plan("ConvFwd_eng1"))

    def call():
        with path.open("a") as file:
            file.write(plan("ConvFwd_eng2"))

    log = plan_oracle._observe_pass(call, CPU, path)
    assert (log.chosen.tag, log.refused) == ("ConvFwd_eng2", ())


def test_the_child_answers_and_outlives_what_fails():
    with PlanOracle(CPU) as oracle:
        broken = dataclasses.replace(PROBLEM, groups=5)
        for log in oracle.ask(broken, PASSES).values():
            assert log.unknown.startswith("PyTorch's own call failed: Given groups=5")
        child = oracle._child.pid
        answers = oracle.ask(PROBLEM, ["fprop", "wgrad"])
        assert list(answers) == ["fprop", "wgrad"]
        for log in answers.values():  # a CPU's convolutions write no plans
            assert "wrote no log" in log.unknown
        assert oracle._child.pid == child
        mapped = Path(f"/proc/{child}/maps").read_text()
        assert "libtorch" in mapped
        assert "convtime" not in mapped  # whose frontend would start the log anew


def test_a_child_that_dies_is_an_answer_and_is_replaced():
    with PlanOracle(CPU) as oracle:
        oracle.ask(PROBLEM, ["fprop"])
        first = oracle._child
        first.kill()
        first.wait()
        assert oracle.ask(PROBLEM, ["fprop"])["fprop"].unknown == (
            "the child process that asks PyTorch ended with status -9"
        )
        assert "wrote no log" in oracle.ask(PROBLEM, ["fprop"])["fprop"].unknown
        last = oracle._child
    assert last.poll() is not None
    assert not Path(oracle._folder.name).exists()


def test_a_child_that_cannot_start_says_why():
    with PlanOracle(torch.device("cuda:99")) as oracle:
        unknown = oracle.ask(PROBLEM, ["fprop"])["fprop"].unknown
    assert unknown.startswith("the child process that asks PyTorch ended with status 1: ")
    assert "Error" in unknown


def test_a_child_that_is_slow_is_ended():
    with PlanOracle(CPU, timeout=0.0) as oracle:
        unknown = oracle.ask(PROBLEM, ["fprop"])["fprop"].unknown
        assert unknown == "the child process that asks PyTorch gave no answer in 0 s"
        assert oracle._child is None


@pytest.mark.cuda
@pytest.mark.parametrize("benchmarks", [False, True])
def test_every_pass_has_a_plan_each_time(benchmarks):
    problem = dataclasses.replace(
        PROBLEM,
        dtype="float16",
        x=TensorLayout((2, 32, 14, 14), (6272, 1, 448, 32), 2),
        w=TensorLayout((64, 32, 3, 3), (288, 1, 96, 32)),
        padding=(1, 1),
        flags=Flags(benchmark=benchmarks),
    )
    with PlanOracle(torch.device("cuda")) as oracle:
        first, second = (oracle.ask(problem, PASSES) for _ in range(2))
    operations = ("ConvFwd_", "ConvBwdData_", "ConvBwdFilter_")
    for log, again, operation in zip(first.values(), second.values(), operations, strict=True):
        if benchmarks:  # its winner may be another each time, and even be a tie
            assert log.source == again.source == "benchmark"
            continue
        assert log.chosen.tag.startswith(f"{operation}eng")
        assert log.source == "heuristic"
        assert again == log
    assert first["fprop"].x == TensorDescriptor((2, 32, 14, 14), (6272, 1, 448, 32), 2, "half")
    assert first["fprop"].y.sizes == (2, 64, 14, 14)
    assert first["fprop"].compute_type == "float"
    assert first["dgrad"].padding == (1, 1)
