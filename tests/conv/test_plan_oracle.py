"""Reading PyTorch's plan log, and the child process that writes it."""

import json
from pathlib import Path

import pytest
import torch

from convtime.conv import plan_oracle
from convtime.conv.call import PASSES, ConvCall, TensorLayout
from convtime.conv.flags import Flags
from convtime.conv.plan_choice import Plan, TensorDescriptor
from convtime.conv.plan_log import PlanLog, kept_tags, parse_log
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec

CPU = torch.device("cpu")
CALL = ConvCall.of_layouts(
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
    assert parse_log(text) == PlanLog(
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


@pytest.mark.parametrize(
    ("written", "dtype"),
    [("HALF", "float16"), ("BFLOAT16", "bfloat16"), ("FLOAT", "float32"), ("DOUBLE", "float64")],
)
def test_dtypes_are_called_as_torch_calls_them(written, dtype):
    text = tensor(ord("x"), "2,4,9,11", "396,1,44,4", f'["{written}"]') + plan("ConvFwd_eng1")
    assert parse_log(text).plan.x.dtype == dtype


def test_a_plan_that_is_built_twice_is_refused_once():
    log = parse_log(plan("ConvFwd_eng1") + plan("ConvFwd_eng2") + plan("ConvFwd_eng1"))
    assert (log.plan.tag, log.plan.refused) == ("ConvFwd_eng1", ("ConvFwd_eng2",))
    log = parse_log(plan("ConvFwd_eng1") + plan("ConvFwd_eng1") + plan("ConvFwd_eng2"))
    assert (log.plan.tag, log.plan.refused) == ("ConvFwd_eng2", ("ConvFwd_eng1",))


def test_each_operation_of_a_pass_keeps_its_last_or_its_fastest_plan():
    built = [plan(f"ConvBwd{which}_eng{index}") for which in ("Data", "Filter") for index in (1, 2)]
    assert kept_tags("".join(built)) == ("ConvBwdData_eng2", "ConvBwdFilter_eng2")
    times = {"Data_eng1": 0.1, "Data_eng2": 0.2, "Filter_eng1": 0.2, "Filter_eng2": 0.1}
    took = [f"Plan ConvBwd{tag} took {time:>10}\n" for tag, time in times.items()]
    assert kept_tags("".join(built + took)) == ("ConvBwdData_eng1", "ConvBwdFilter_eng2")
    assert kept_tags("") == ()


def benchmark_log(*times):
    built = "".join(plan(f"ConvFwd_eng{index}", index) for index in range(len(times)))
    return built + "".join(
        f"[cudnn_frontend] Plan ConvFwd_eng{index} "
        + (f"took {time:>10}\n" if time else "failed with CUDNN_STATUS_EXECUTION_FAILED\n")
        for index, time in enumerate(times)
    )


def test_benchmarking_chooses_the_fastest():
    log = parse_log(benchmark_log("0.0512", "", "0.0113", "1.2e-02"))
    assert log.plan == Plan("ConvFwd_eng2", "benchmark", 2, refused=("ConvFwd_eng1",))
    assert log.timed == ("ConvFwd_eng0", "ConvFwd_eng2", "ConvFwd_eng3")


def test_a_tie_is_not_guessed():
    log = parse_log(benchmark_log("0.02", "0.01", "0.01"))
    assert log.plan is None
    assert "ConvFwd_eng1 and ConvFwd_eng2" in log.unknown
    assert log.timed == ("ConvFwd_eng0", "ConvFwd_eng1", "ConvFwd_eng2")


def test_a_log_without_a_plan_says_so():
    for text in ("", GRAPH):
        assert parse_log(text) == PlanLog(unknown="PyTorch's log has no plan for this call")


def test_a_log_survives_json():
    for log in (parse_log(GRAPH + plan("ConvFwd_eng3_k2=1")), parse_log("")):
        assert codec.decode(PlanLog, json.loads(json.dumps(codec.encode(log)))) == log


def test_only_what_a_call_added_is_read(tmp_path):
    path = tmp_path / "log"
    path.write_text(plan("ConvFwd_eng1"))

    def call():
        with path.open("a") as file:
            file.write(plan("ConvFwd_eng2"))

    log = plan_oracle._observe_pass(call, CPU, path)
    assert (log.plan.tag, log.plan.refused) == ("ConvFwd_eng2", ())


# One number, but more elements than a copy of them could have bytes.
TOO_LARGE = ConvCall.of_layouts(
    "float32", TensorLayout((1, 2, 2**31 - 1, 2**30), (0, 0, 0, 0)), CALL.w
)


def test_the_child_answers_and_outlives_what_fails_and_is_replaced_if_it_dies():
    with PlanOracle(CPU) as oracle:
        for log in oracle.ask(TOO_LARGE, PASSES).values():
            assert log.unknown.startswith("PyTorch's own call failed: Storage size calculation ov")
        child = oracle._child.pid
        answers = oracle.ask(CALL, ["fprop", "wgrad"])
        assert list(answers) == ["fprop", "wgrad"]
        for log in answers.values():  # a CPU's convolutions write no plans
            assert "wrote no log" in log.unknown
        assert oracle._child.pid == child
        mapped = Path(f"/proc/{child}/maps").read_text()
        assert "libtorch" in mapped
        assert "convtime" not in mapped  # whose frontend would start the log anew

        oracle._child.kill()
        oracle._child.wait()
        assert oracle.ask(CALL, ["fprop"])["fprop"].unknown == (
            "the child process that asks PyTorch ended with status -9"
        )
        assert "wrote no log" in oracle.ask(CALL, ["fprop"])["fprop"].unknown
        last = oracle._child
    assert last.poll() is not None
    assert not Path(oracle._folder.name).exists()


def test_a_child_that_cannot_start_says_why():
    with PlanOracle(torch.device("cuda:99")) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
    assert unknown.startswith("the child process that asks PyTorch ended with status 1: ")
    assert "Error" in unknown


def test_a_child_that_is_slow_is_ended():
    with PlanOracle(CPU, timeout=0.0) as oracle:
        unknown = oracle.ask(CALL, ["fprop"])["fprop"].unknown
        assert unknown == "the child process that asks PyTorch gave no answer in 0 s"
        assert oracle._child is None


@pytest.mark.cuda
@pytest.mark.parametrize("benchmarks", [False, True])
def test_every_pass_has_a_plan_each_time(benchmarks):
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
            assert found.plan.source == ("benchmark" if benchmarks else "heuristic")
            assert found.plan.tag.startswith(f"{operation}eng")
            assert found.plan.compute_type == "float32"
            assert found.plan.y.sizes == (2, 64, 14, 14)
            assert found.plan.padding == (1, 1)
        if not benchmarks:
            assert again == log
    x = TensorDescriptor((2, 32, 14, 14), (6272, 1, 448, 32), 2, "float16")
    assert first["fprop"].plan is None or first["fprop"].plan.x == x
