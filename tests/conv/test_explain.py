"""Kernels and plans of both sides: on a CPU, of stand-ins for cuDNN, and on a GPU."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.utils import prune

import convtime
from convtime.conv import advice
from convtime.conv import explaining as running
from convtime.conv.call import PASSES, ConvCall, Flags, TensorLayout
from convtime.conv.explaining import differences, explain
from convtime.conv.explanation import Explanation, Side
from convtime.conv.kernels import shares_by_role
from convtime.conv.plan_choice import Plan, PlanChoice, TensorDescriptor
from convtime.conv.plan_log import PlanLog
from convtime.conv.plan_oracle import PlanOracle
from convtime.core.kinds import KINDS
from convtime.timing.activity import DeviceActivity
from tests.helpers.convolutions import with_known_times
from tests.helpers.recorded import activity

QUICK: dict[str, Any] = {"budget": 0.001, "warmup": 1}
ON_GPU: dict[str, Any] = {"budget": 0.02}
SPATIAL = (7, 9, 11)
LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def alternatives_are_not_warmed_up(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("cuda") is None:
            patch.setattr(advice, "_WARMUP_SECONDS", 0.0)
        yield


def example(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, 9, 11, **options), torch.randn(6, 4, 3, 5, **options)


def through_json(found: Explanation) -> Explanation:
    return Explanation.from_dict(json.loads(json.dumps(found.to_dict())))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.function)
def test_every_function_on_a_cpu(kind: Any) -> None:
    name, rank = kind.function, kind.rank
    x = torch.randn(2, 4, *SPATIAL[:rank])
    w = torch.randn(*((4, 3) if kind.transposed else (6, 2)), *(3, 2, 1)[:rank])
    options: dict[str, Any] = {"weight": w, "stride": 2, "groups": 2, "padding": 1}
    options |= {"output_padding": 1} if kind.transposed else {"dilation": 2}
    for where in (F, convtime.ops):
        function = getattr(where, name)
        found = explain(function, x, kwargs=options, backward=True, **QUICK)
        problem = found.call.problem
        assert problem.kind.function == name
        assert (problem.stride, problem.padding) == ((2,) * rank, (1,) * rank)
        assert problem.output_shape == function(x, **options).shape
        assert found.call.x == TensorLayout.of(x)
        assert (found.device, found.policy, found.differences) == ("cpu", None, ())
        assert [explained.name for explained in found.passes] == ["fprop", "dgrad", "wgrad"]
        for explained in found.passes:
            assert explained.bit_identical
            assert "compute in bfloat16" in [each.text for each in explained.advice]
            for side in (explained.pytorch, explained.convtime):
                assert (side.plan, side.kernels, side.method) == (None, (), "cpu")
                assert "does not give this pass to cuDNN" in side.no_plan
                assert side.seconds > 0
        assert ("output padding 1" in str(found)) == kind.transposed
        assert through_json(found) == found


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_modules_and_their_paddings() -> None:
    cases: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({"padding": 1, "groups": 2, "bias": False}, (1, 1)),
        ({"padding": "same", "dilation": (1, 3)}, (1, 3)),
        ({"padding": "valid"}, (0, 0)),
        ({"padding": 1, "padding_mode": "reflect"}, (0, 0)),
    ]
    x = torch.randn(4, 9, 11)
    for where in (torch.nn, convtime.nn):
        for options, padding in cases:
            module = where.Conv2d(4, 6, 3, **options)
            found = explain(module, x, backward=False, **QUICK)
            assert found.call.problem.padding == padding
            assert found.call.problem.bias == (module.bias is not None)
            assert found.call.problem.output_shape[1:] == module(x).shape
            assert found.differences == ()
        grown = where.ConvTranspose3d(4, 6, 3, stride=2)
        size = [16, 20, 24]
        found = explain(grown, torch.randn(4, *SPATIAL), kwargs={"output_size": size}, **QUICK)
        assert found.call.problem.output_padding == (1, 1, 1)
        assert found.call.problem.output_shape == (1, 6, *size)
    # An uneven padding is put at the end first.
    x, w = torch.randn(1, 4, 8, 8), torch.randn(6, 4, 2, 5)
    found = explain(F.conv2d, x, w, kwargs={"padding": "same"}, **QUICK)
    assert (found.call.x.sizes, found.call.problem.padding) == ((1, 4, 9, 8), (0, 2))
    assert found.call.problem.output_shape == (1, 6, 8, 8)


def test_passes_are_those_that_are_requested() -> None:
    def names(x_grad: bool, w_grad: bool, backward: bool | None) -> list[str]:
        x, w = example()
        x.requires_grad_(x_grad)
        w.requires_grad_(w_grad)
        found = explain(F.conv2d, x, w, backward=backward, **QUICK)
        assert found.differences == ()
        assert x.grad is w.grad is None
        return [explained.name for explained in found.passes]

    assert names(False, False, None) == names(True, True, False) == ["fprop"]
    assert names(True, False, None) == ["fprop", "dgrad"]
    assert names(False, True, None) == ["fprop", "wgrad"]
    assert names(True, True, None) == names(False, False, True) == [*PASSES]
    with torch.no_grad():
        assert names(True, True, None) == ["fprop"]
    with torch.autocast("cpu", torch.bfloat16):
        found = explain(F.conv2d, *example(), **QUICK)
    assert (found.call.dtype, found.differences) == ("bfloat16", ())


def test_the_ratio_is_convtimes_time_by_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "compare", with_known_times)
    found = explain(F.conv2d, *example(), backward=True, **QUICK)
    for each in found.passes:
        assert (each.pytorch.seconds, each.convtime.seconds) == pytest.approx((1e-5, 2e-5))
        assert (each.ratio.value, each.verdict) == (pytest.approx(2), "slower")
    for text in (str(found), found.details(), found._repr_html_()):
        for part in ("2×4×9×11", "float32", "Mkldnn", "wgrad", "run the same"):
            assert part in text


class Strided(torch.nn.Conv2d):
    def forward(self, input: torch.Tensor, scale: float) -> torch.Tensor:  # type: ignore[override]
        return F.conv2d(input * scale, self.weight, self.bias, stride=2)


PLAIN = torch.nn.Conv2d(2, 2, 1)


def with_another(name: str) -> torch.nn.Module:
    layer = convtime.nn.Conv2d(4, 6, 3)
    setattr(layer, name, getattr(torch.nn.Conv2d(4, 6, 3, stride=2), name))
    return layer


def with_a_pre_hook() -> torch.nn.Module:
    layer = torch.nn.Conv2d(4, 6, 3)
    layer.register_forward_pre_hook(lambda _, arguments: (arguments[0][:1],))
    return layer


def test_layers_whose_weight_is_computed() -> None:
    for change in (
        torch.nn.utils.parametrizations.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ):
        layer = change(torch.nn.Conv2d(4, 6, 3))
        for _ in range(2):
            found = explain(layer, torch.randn(2, 4, 9, 11), **QUICK)
            assert found.call.w == TensorLayout.of(layer.weight)
            assert found.differences == ()
            convtime.nn.replace(layer)


def test_what_may_not_be_a_convolution_alone_is_refused() -> None:
    advised = ".*torch.nn.functional.conv2d with its tensors"
    x, w = example()
    many: tuple[Any, ...] = tuple(each.to(torch.complex64) for each in (x, w))
    cases: list[tuple[type[Exception], str, Any, tuple[Any, ...], dict[str, Any]]] = [
        (TypeError, "got relu$", torch.relu, (x,), {}),
        (TypeError, "got Linear$", torch.nn.Linear(2, 2), (x,), {}),
        (TypeError, r"contains 1 convolution\(s\)", torch.nn.Sequential(PLAIN), (x,), {}),
        (TypeError, "got Tensor for", torch.ones(2), (x,), {}),
        (
            TypeError,
            f"Strided that .* is not a class of torch{advised}",
            Strided(4, 6, 3),
            (x,),
            {},
        ),
        (TypeError, "has no shapes before its first call", torch.nn.LazyConv2d(6, 3), (x,), {}),
        *(
            (
                TypeError,
                f"its {name} is replaced on the object{advised}",
                with_another(name),
                (x,),
                {},
            )
            for name in ("forward", "_conv_forward")
        ),
        (TypeError, "<lambda>, a forward pre-hook, may change", with_a_pre_hook(), (x,), {}),
        (RuntimeError, "expected input", F.conv2d, (x[:, :3], w), {}),
        (TypeError, "explain has no option 'padding'", F.conv2d, (x, w), {"padding": 1}),
        (TypeError, "no_such_option", F.conv2d, (x, w), {"kwargs": {"no_such_option": 1}}),
        (ValueError, "backward must be True, False or", F.conv2d, (x, w), {"backward": "yes"}),
        (ValueError, "dtype must be one of", F.conv2d, many, {}),
        (ValueError, "a tensor on meta", F.conv2d, (x.to("meta"), w.to("meta")), {}),
    ]
    for error, message, fn, arguments, options in cases:
        with pytest.raises(error, match=message):
            explain(fn, *arguments, **options)


X = TensorDescriptor((2, 4, 9, 11), (396, 99, 11, 1), 32, "float32")
PLAN = Plan(
    tag="ConvFwd_eng38_k2=8_k13=-1", source="heuristic", numerical_notes=("TENSOR_CORE",),
    behavior_notes=(), workspace_bytes=1024, refused=("ConvFwd_eng1",), x=X,
    w=TensorDescriptor((6, 4, 3, 5), (60, 15, 5, 1), 32, "float32"),
    y=TensorDescriptor((2, 6, 7, 7), (294, 49, 7, 1), 32, "float32"), compute_type="float32",
    padding=(0, 0), stride=(1, 1), dilation=(1, 1),
)  # fmt: skip
KERNEL = DeviceActivity(
    "kernel", "implicit_gemm<float>", (8, 1, 1), (128, 1, 1), 32, 4096, 0, (2e-6,)
)
MEMSET = DeviceActivity("memset", "", (0, 0, 0), (0, 0, 0), 0, 0, 1024, (1e-6,))
SIDE = Side(PLAN, "", (KERNEL, MEMSET), 3e-6, "kernel")


def told(ours: Side, theirs: Side = SIDE, *, bits_differ: bool = False) -> list[str]:
    return [*differences(theirs, ours, bits_differ=bits_differ)]


def test_each_part_of_a_plan_and_of_a_kernel_is_compared() -> None:
    parts_of_a_plan: list[tuple[dict[str, Any], str]] = [
        ({"tag": "ConvFwd_eng3"}, "tag: PyTorch has ConvFwd_eng38_k2=8_k13=-1, convtime ConvFwd"),
        ({"workspace_bytes": 0}, "workspace_bytes: PyTorch has 1024, convtime 0"),
        ({"numerical_notes": ()}, "numerical_notes: PyTorch has TENSOR_CORE, convtime none"),
        ({"behavior_notes": ("A",)}, "behavior_notes: PyTorch has none, convtime A"),
        *(
            ({name: dataclasses.replace(getattr(PLAN, name), alignment=4)}, f"{name}: .* to 4")
            for name in "xwy"
        ),
        ({"compute_type": "float16"}, "compute_type: PyTorch has float32, convtime float16"),
        *(({name: (2, 1)}, f"{name}: .* ., ., convtime 2, 1") for name in ("padding", "dilation")),
        ({"stride": (2, 1)}, "stride: .* 1, 1, convtime 2, 1"),
    ]
    for changes, message in parts_of_a_plan:
        (found,) = told(dataclasses.replace(SIDE, plan=dataclasses.replace(PLAN, **changes)))
        assert re.search(message, found)
    launches: list[dict[str, Any]] = [{"name": "x"}, {"grid": (9, 1, 1)}, {"block": (64, 1, 1)}]
    for change in launches:
        kernels = (dataclasses.replace(KERNEL, **change), MEMSET)
        (found,) = told(dataclasses.replace(SIDE, kernels=kernels))
        assert "kernels" in found
    (found,) = told(dataclasses.replace(SIDE, kernels=(KERNEL,)))
    assert "the kernels, 2 of PyTorch and 1 of convtime, differ" in found
    (found,) = told(SIDE, dataclasses.replace(SIDE, plan=None, no_plan="the child died"))
    assert "the child died" in found
    assert PLAN.tag in found
    (found,) = told(SIDE, bits_differ=True)
    assert "bits" in found
    # Times, and what is not known, are no differences; several streams end in any order.
    plan = dataclasses.replace(PLAN, compute_type=None, source="instant", refused=())
    kernels = (MEMSET, dataclasses.replace(KERNEL, seconds=(1.0,)))
    assert told(dataclasses.replace(SIDE, plan=plan, kernels=kernels, seconds=1.0)) == []


NAMES = ("sm80_gemm", "nchwToNhwcKernel", "nhwcToNchwKernel", "genericTranspose", "memset", "what")
ROLES = ("main kernel", *["layout conversion"] * 3, "filling", "other")


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 999)), max_size=6))
def test_a_calls_time_is_divided_by_role(drawn: Sequence[tuple[str, int]]) -> None:
    found = shares_by_role(activity(name, ticks / 1e9) for name, ticks in drawn)
    expected: dict[str, list[tuple[str, int]]] = {}
    for name, ticks in drawn:
        expected.setdefault(dict(zip(NAMES, ROLES, strict=True))[name], []).append((name, ticks))
    assert {part.role for part in found} == {*expected}
    assert len(found) == len(expected)
    for part in found:
        members = expected[part.role]
        assert part.seconds == pytest.approx(sum(ticks for _, ticks in members) / 1e9)
        assert part.names == tuple(name for name, _ in members)
        assert part.between_nchw_and_nhwc == (
            part.role == "layout conversion" and "genericTranspose" not in part.names
        )
    times = [part.seconds for part in found]
    assert times == sorted(times, reverse=True)


def choice(**changes: Any) -> PlanChoice:
    """As convtime.conv.plan_cache() gives them."""
    plan = {field.name: getattr(PLAN, field.name) for field in dataclasses.fields(Plan)}
    rest: dict[str, Any] = {
        "source": "instant", "refused": (), "compute_type": None, "pass_name": "fprop",
        "policy": "heuristic", "device": "cpu", "dtype": "float32", "deterministic": False,
        "allow_tf32": True, "uses": 1, "rebuilds": 0,
    }  # fmt: skip
    return PlanChoice(**plan | rest | changes)


class FakeOracle(PlanOracle):
    answer = PlanLog()

    def ask(self, call: ConvCall, passes: Any) -> dict[str, PlanLog]:
        return dict.fromkeys(passes, self.answer)


Pretend = Callable[..., Explanation]


@pytest.fixture
def pretended_cudnn(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Lets a CPU's convolution pass for cuDNN's, with a log and a plan cache of the test's own."""

    def backend(self: ConvCall, *_: object) -> str:
        return "CudnnTranspose" if self.problem.transposed else "Cudnn"

    monkeypatch.setattr(ConvCall, "backend", backend)
    monkeypatch.setattr(running, "PlanOracle", FakeOracle)

    def pretend(
        log: PlanLog,
        choices: Sequence[PlanChoice],
        fn: Any = F.conv2d,
        arguments: Any = None,
        backward: bool | None = None,
        **options: Any,
    ) -> Explanation:
        monkeypatch.setattr(FakeOracle, "answer", log)
        monkeypatch.setattr(running, "plan_cache", lambda: choices)
        return explain(fn, *(arguments or example()), kwargs=options, backward=backward, **QUICK)

    return pretend


LOGGED = Plan(PLAN.tag, "heuristic", 1024, ("TENSOR_CORE",))


def test_the_last_fitting_choice_is_convtimes(
    pretended_cudnn: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = dataclasses.replace(LOGGED, x=X, refused=("ConvFwd_eng1",), compute_type="float32")
    found = pretended_cudnn(PlanLog(logged), (choice(),))
    assert found.differences == ()
    for side in (found.passes[0].pytorch, found.passes[0].convtime):
        assert side.plan is not None
        assert (side.plan.engine, side.plan.knobs) == (38, {2: 8, 13: -1})
    assert through_json(found) == found
    assert "refused plans" in found.details()
    others: list[Mapping[str, Any]] = [
        *({name: (1, 2)} for name in ("padding", "stride", "dilation")),
        *({name: dataclasses.replace(X, sizes=(2, 4, 9, 12))} for name in "xwy"),
        {"dtype": "float16"},
        {"pass_name": "dgrad"},
    ]
    foreign = [choice(tag="ConvFwd_eng9", **changes) for changes in others]
    # Bits differ only where PyTorch repeats its own.
    for repeats in (False, True):
        monkeypatch.setattr(running, "compare_bits", lambda *_, same=repeats: (False, same))
        found = pretended_cudnn(PlanLog(LOGGED), (choice(), choice(tag="ConvFwd_eng2"), *foreign))
        plan = found.passes[0].convtime.plan
        assert plan is not None
        assert plan.tag == "ConvFwd_eng2"
        tag, *bits = found.differences
        assert tag.startswith("fprop: tag: ")
        assert ["differ in their bits" in text for text in bits] == [True] * repeats


def test_a_plan_that_is_not_known_is_not_guessed(pretended_cudnn: Pretend) -> None:
    found = pretended_cudnn(PlanLog(unknown="the child died"), (choice(),))
    assert found.passes[0].pytorch.plan is None
    (difference,) = found.differences
    assert "the child died" in difference
    found = pretended_cudnn(PlanLog(LOGGED), ())
    assert "no choice" in found.passes[0].convtime.no_plan
    assert len(found.differences) == 1


def same_plans(found: Explanation) -> Iterator[Plan]:
    """Yield the plan of each pass, which is the same on both sides."""
    assert found.differences == (), str(found)
    for explained in found.passes:
        assert explained.pytorch.plan is not None
        assert explained.convtime.plan is not None
        assert explained.pytorch.plan.tag == explained.convtime.plan.tag
        yield explained.pytorch.plan


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_cudnns_plans_are_the_same_on_a_gpu(dtype: torch.dtype) -> None:
    x = torch.randn(8, 32, 28, 28, device="cuda", dtype=dtype, requires_grad=True)
    module = convtime.nn.Conv2d(32, 64, 3, padding=1, device="cuda", dtype=dtype)
    module = module.to(memory_format=torch.channels_last)
    found = explain(module, x, **ON_GPU)
    assert [explained.name for explained in found.passes] == ["fprop", "dgrad", "wgrad"]
    assert found.backend == "Cudnn"
    for explained, plan in zip(found.passes, same_plans(found), strict=True):
        assert plan.x is not None
        assert plan.x.sizes == (8, 32, 28, 28)
        assert explained.pytorch.kernels
        assert 0.5 < explained.ratio.value < 2
        assert explained.pytorch.method == "kernel"


@pytest.mark.cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_the_time_goes_into_is_told_on_a_gpu(layout: torch.memory_format) -> None:
    x = torch.randn(8, 64, 56, 56, device="cuda").to(memory_format=layout)
    w = torch.randn(64, 64, 3, 3, device="cuda").to(memory_format=layout)
    found = explain(F.conv2d, x, w, kwargs={"padding": 1}, backward=True, **ON_GPU)
    for explained in found.passes:
        roles = [part.role for part in shares_by_role(explained.pytorch.kernels)]
        assert "main kernel" in roles, found.details()
        assert "other" not in roles, found.details()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.function != "conv2d"])
def test_other_kinds_run_pytorchs_plans_on_a_gpu(kind: Any) -> None:
    for layout in {None, LAYOUTS.get(kind.rank)}:
        module = getattr(convtime.nn, kind.layer)(16, 32, 3, stride=2, padding=1, device="cuda")
        x = torch.randn(2, 16, *SPATIAL[: kind.rank], device="cuda", requires_grad=True)
        if layout is not None:
            module = module.to(memory_format=layout)
        found = explain(module, x, **ON_GPU)
        assert found.backend == ("CudnnTranspose" if kind.transposed else "Cudnn")
        for plan in same_plans(found):
            assert plan.x is not None
            assert plan.x.sizes == found.call.problem.cudnn_problem().input_shape


@pytest.mark.cuda
def test_pytorchs_depthwise_kernel_is_run_on_a_gpu() -> None:
    x = torch.randn(2, 32, 28, 28, device="cuda")
    w = torch.randn(32, 1, 3, 3, device="cuda")
    found = explain(F.conv2d, x, w, kwargs={"groups": 32}, **ON_GPU)
    assert (found.backend, found.differences) == ("CudaDepthwise2d", ())
    assert "float16" in found.why
    assert "depthwise" in found.passes[0].convtime.kernels[0].name.lower()


@pytest.mark.cuda
def test_a_difference_is_found_on_a_gpu() -> None:
    x = torch.randn(1, 64, 56, 56, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda")
    with dataclasses.replace(Flags.current(), allow_tf32=True).applied():
        usual = explain(F.conv2d, x, w, **ON_GPU).passes[0].convtime.plan
    with dataclasses.replace(Flags.current(), allow_tf32=False).applied():
        pytorch = explain(F.conv2d, x, w, **ON_GPU).passes[0].pytorch
    other = pytorch.plan
    assert other is not None, pytorch.no_plan
    ours = explain(convtime.ops.conv2d, x, w, kwargs={"policy": other.tag}, **ON_GPU)
    assert usual is not None
    assert other.tag != usual.tag
    assert any("tag" in text for text in ours.differences)
    plan = ours.passes[0].convtime.plan
    assert plan is not None
    assert plan.tag == other.tag
