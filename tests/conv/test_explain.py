"""What explain says, on a CPU, of stand-ins for cuDNN, and on a GPU."""

import dataclasses
import json
import re
import types
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import prune

import convtime
from convtime.conv.call import ConvCall, TensorLayout
from convtime.conv.explain import explain as running
from convtime.conv.explain.explain import differences, explain
from convtime.conv.explain.explanation import Explanation, PassExplanation, Side
from convtime.conv.explain.kernels import parts
from convtime.conv.explain.reasons import why
from convtime.conv.explain.show import facts_of
from convtime.conv.flags import Flags
from convtime.conv.identity import compare_bits
from convtime.conv.plan_choice import Plan, PlanChoice, TensorDescriptor
from convtime.conv.plan_log import PlanLog
from convtime.conv.plan_oracle import PlanOracle
from convtime.timing.activity import DeviceActivity
from convtime.timing.verdict import Ratio

QUICK: dict[str, Any] = {"budget": 0.02}


def example(device="cpu", **options):
    return (
        torch.randn(2, 4, 9, 11, device=device, **options),
        torch.randn(6, 4, 3, 5, device=device, **options),
    )


@pytest.mark.parametrize("fn", [F.conv2d, torch.conv2d, convtime.ops.conv2d])
def test_functions(fn):
    x, w = example()
    found = explain(fn, x, kwargs={"weight": w, "padding": (1, 2), "stride": 2}, **QUICK)
    assert (found.backend, found.device, found.policy) == ("Mkldnn", "cpu", None)
    assert "oneDNN" in found.why
    (fprop,) = found.passes
    assert fprop.name == "fprop"
    assert fprop.bit_identical
    assert found.differences == ()
    for side in (fprop.pytorch, fprop.convtime):
        assert (side.plan, side.kernels, side.method) == (None, (), "cpu")
        assert "does not give this pass to cuDNN" in side.no_plan
        assert side.seconds > 0
    assert found.call.problem.stride == (2, 2)
    assert found.call.problem.padding == (1, 2)
    assert found.call.x == TensorLayout.of(x)


SPATIAL = (7, 9, 11)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("where", [F, convtime.ops])
def test_every_function(where, transposed, rank):
    name = f"conv{'_transpose' if transposed else ''}{rank}d"
    x = torch.randn(2, 4, *SPATIAL[:rank])
    w = torch.randn(*((4, 3) if transposed else (6, 2)), *(3, 2, 1)[:rank])
    options = {"output_padding": 1, "dilation": 1} if transposed else {"dilation": 2}
    function = getattr(where, name)
    found = explain(
        function,
        x,
        w,
        kwargs={"stride": 2, "groups": 2, "padding": 1, **options},
        backward=True,
        **QUICK,
    )
    assert found.call.problem.kind.function == name
    assert found.call.problem.output_shape == function(x, w, None, 2, 1, groups=2, **options).shape
    assert [explained.name for explained in found.passes] == ["fprop", "dgrad", "wgrad"]
    assert found.differences == ()
    assert name in str(found)
    assert ("output padding 1" in str(found)) == transposed
    assert Explanation.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("where", [torch.nn, convtime.nn])
def test_every_module(where, rank):
    x = torch.randn(2, 4, *SPATIAL[:rank])
    plain = getattr(where, f"Conv{rank}d")(4, 6, 3, padding=1, padding_mode="circular")
    found = explain(plain, x, **QUICK)
    assert found.call.problem.kind.function == f"conv{rank}d"
    assert found.call.problem.padding == (0,) * rank
    assert found.call.problem.output_shape == plain(x).shape
    transposed = getattr(where, f"ConvTranspose{rank}d")(4, 6, 3, stride=2)
    size = [2 * length + 2 for length in SPATIAL[:rank]]
    found = explain(transposed, x[0], kwargs={"output_size": size}, **QUICK)
    assert found.call.problem.kind.function == f"conv_transpose{rank}d"
    assert found.call.problem.output_padding == (1,) * rank
    assert found.call.problem.output_shape == (1, 6, *size)


@pytest.mark.parametrize("kind", [torch.nn.Conv2d, convtime.nn.Conv2d])
@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({"padding": 1, "groups": 2, "bias": False}, (1, 1)),
        ({"padding": "same", "dilation": (1, 3)}, (1, 3)),
        ({"padding": "valid"}, (0, 0)),
        ({"padding": 1, "padding_mode": "reflect"}, (0, 0)),
    ],
)
def test_modules(kind, options, padding):
    module = kind(4, 6, 3, **options)
    x = torch.randn(4, 9, 11)
    found = explain(module, x, backward=False, **QUICK)
    assert found.call.problem.padding == padding
    assert found.call.problem.bias == (module.bias is not None)
    assert found.call.problem.output_shape[1:] == module(x).shape
    assert found.differences == ()


def test_uneven_same_padding_is_put_at_the_end_first():
    x, w = torch.randn(1, 4, 8, 8), torch.randn(6, 4, 2, 5)
    found = explain(F.conv2d, x, w, kwargs={"padding": "same"}, **QUICK)
    assert found.call.x.sizes == (1, 4, 9, 8)
    assert found.call.problem.padding == (0, 2)
    assert found.call.problem.output_shape == (1, 6, 8, 8)


@pytest.mark.parametrize(
    ("x_grad", "w_grad", "backward", "passes"),
    [
        (False, False, None, ["fprop"]),
        (True, False, None, ["fprop", "dgrad"]),
        (False, True, None, ["fprop", "wgrad"]),
        (True, True, None, ["fprop", "dgrad", "wgrad"]),
        (False, False, True, ["fprop", "dgrad", "wgrad"]),
        (True, True, False, ["fprop"]),
    ],
)
def test_passes(x_grad, w_grad, backward, passes):
    x, w = example()
    x.requires_grad_(x_grad)
    w.requires_grad_(w_grad)
    found = explain(F.conv2d, x, w, backward=backward, **QUICK)
    assert [explained.name for explained in found.passes] == passes
    assert found.differences == ()
    assert x.grad is None
    assert w.grad is None


def test_without_grad_mode_there_is_no_backward_pass():
    x, w = example(requires_grad=True)
    with torch.no_grad():
        assert len(explain(F.conv2d, x, w, **QUICK).passes) == 1


def test_autocast_is_seen_to():
    x, w = example()
    with torch.autocast("cpu", torch.bfloat16):
        found = explain(F.conv2d, x, w, **QUICK)
    assert found.call.dtype == "bfloat16"
    assert found.differences == ()


def test_it_survives_json_and_can_be_read():
    x, w = example()
    found = explain(F.conv2d, x, w, backward=True, **QUICK)
    assert Explanation.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert repr(found).startswith("<convtime.Explanation conv2d of 2×4×9×11 by 6×4×3×5, float32")
    for text in (str(found), found.details(), found._repr_html_()):
        for part in ("2×4×9×11", "float32", "Mkldnn", "wgrad", "run the same"):
            assert part in text
    with pytest.raises(ValueError, match=r"an Explanation of schema '7.0' .* only of schema 6\.x"):
        Explanation.from_dict(found.to_dict() | {"schema": "7.0"})


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (torch.relu, "got relu$"),
        (torch.nn.Linear(2, 2), "got Linear$"),
        (torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1)), r"contains 1 convolution\(s\)"),
        (torch.ones(2), "got Tensor for"),
    ],
)
def test_what_is_no_convolution(fn, message):
    with pytest.raises(TypeError, match=message):
        explain(fn, torch.randn(1, 2, 3, 3))


class Strided(torch.nn.Conv2d):
    def forward(self, input, scale):  # type: ignore[override]
        return F.conv2d(input * scale, self.weight, self.bias, stride=2)


def layer_of_another_forward(name):
    layer = convtime.nn.Conv2d(4, 6, 3)
    setattr(layer, name, getattr(torch.nn.Conv2d(4, 6, 3, stride=2), name))
    return layer


def layer_with_a_pre_hook():
    layer = torch.nn.Conv2d(4, 6, 3)
    layer.register_forward_pre_hook(lambda _, arguments: (arguments[0][:1],))
    return layer


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Strided(4, 6, 3),
            r"Strided that .*\.Strided is not a class of torch\.nn itself; pass ",
        ),
        (torch.nn.LazyConv2d(6, 3), "a LazyConv2d has no shapes before its first call"),
        (layer_of_another_forward("forward"), "its forward is replaced on the object"),
        (layer_of_another_forward("_conv_forward"), "its _conv_forward is replaced on the object"),
        (layer_with_a_pre_hook(), "<lambda>, a forward pre-hook, may change its input"),
    ],
)
def test_layers_that_may_compute_something_else_are_refused(module, message):
    with pytest.raises(TypeError, match=f"{message}.*torch.nn.functional.conv2d with its tensors"):
        explain(module, torch.randn(2, 4, 9, 11))


@pytest.mark.parametrize(
    "change",
    [
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
        torch.nn.utils.parametrizations.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_layers_whose_weight_is_computed(change, replaced):
    layer = change(torch.nn.Conv2d(4, 6, 3))
    if replaced:
        convtime.nn.replace(layer)
    found = explain(layer, torch.randn(2, 4, 9, 11), **QUICK)
    assert found.call.w == TensorLayout.of(layer.weight)
    assert found.differences == ()


def test_other_mistakes():
    x, w = example()
    with pytest.raises(RuntimeError, match="expected input"):
        explain(F.conv2d, x[:, :3], w)
    with pytest.raises(TypeError, match="explain has no option 'padding'"):
        explain(F.conv2d, x, w, padding=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        explain(F.conv2d, x, w, kwargs={"no_such_option": 1})
    with pytest.raises(ValueError, match="backward must be True, False or None, got 'yes'"):
        explain(F.conv2d, x, w, backward="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be one of"):
        explain(F.conv2d, x.to(torch.complex64), w.to(torch.complex64))
    with pytest.raises(ValueError, match="a tensor on meta"):
        explain(F.conv2d, x.to("meta"), w.to("meta"))


X = TensorDescriptor((2, 4, 9, 11), (396, 99, 11, 1), 32, "float32")
PLAN = Plan(
    tag="ConvFwd_eng38_k2=8_k13=-1",
    source="heuristic",
    numerical_notes=("TENSOR_CORE",),
    behavior_notes=(),
    workspace_bytes=1024,
    refused=("ConvFwd_eng1",),
    x=X,
    w=TensorDescriptor((6, 4, 3, 5), (60, 15, 5, 1), 32, "float32"),
    y=TensorDescriptor((2, 6, 7, 7), (294, 49, 7, 1), 32, "float32"),
    compute_type="float32",
    padding=(0, 0),
    stride=(1, 1),
    dilation=(1, 1),
)
KERNEL = DeviceActivity(
    "kernel", "implicit_gemm<float>", (8, 1, 1), (128, 1, 1), 32, 4096, 0, (2e-6,)
)
MEMSET = DeviceActivity("memset", "", (0, 0, 0), (0, 0, 0), 0, 0, 1024, (1e-6,))
SIDE = Side(PLAN, "", (KERNEL, MEMSET), 3e-6, "kernel")


def test_the_same_has_no_differences():
    slower = dataclasses.replace(KERNEL, seconds=(1.0,))
    ours = dataclasses.replace(SIDE, kernels=(slower, MEMSET), seconds=1.0)
    ours = dataclasses.replace(
        ours, plan=dataclasses.replace(PLAN, compute_type=None, source="instant", refused=())
    )
    assert list(differences(SIDE, ours, bits_differ=False)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tag": "ConvFwd_eng3"}, "tag: PyTorch has ConvFwd_eng38_k2=8_k13=-1, convtime ConvFwd"),
        ({"workspace_bytes": 0}, "workspace_bytes: PyTorch has 1024, convtime 0"),
        ({"numerical_notes": ()}, "numerical_notes: PyTorch has TENSOR_CORE, convtime none"),
        ({"x": dataclasses.replace(X, alignment=4)}, "aligned to 32, float32, convtime .* to 4"),
        ({"compute_type": "float16"}, "compute_type: PyTorch has float32, convtime float16"),
        ({"dilation": (2, 1)}, "dilation: PyTorch has 1, 1, convtime 2, 1"),
    ],
)
def test_each_part_of_a_plan_is_compared(changes, message):
    ours = dataclasses.replace(SIDE, plan=dataclasses.replace(PLAN, **changes))
    (found,) = differences(SIDE, ours, bits_differ=False)
    assert re.search(message, found)


@pytest.mark.parametrize(
    "kernels",
    [
        SIDE.kernels[:1],
        (dataclasses.replace(KERNEL, name="other"), SIDE.kernels[1]),
        (dataclasses.replace(KERNEL, grid=(9, 1, 1)), SIDE.kernels[1]),
        (dataclasses.replace(KERNEL, block=(64, 1, 1)), SIDE.kernels[1]),
    ],
)
def test_kernels_are_compared(kernels):
    ours = dataclasses.replace(SIDE, kernels=kernels)
    (found,) = differences(SIDE, ours, bits_differ=False)
    assert "kernels" in found


def test_what_cannot_be_compared_is_said():
    unknown = dataclasses.replace(SIDE, plan=None, no_plan="not known: the child died")
    (found,) = differences(unknown, SIDE, bits_differ=False)
    assert "not known: the child died" in found
    assert PLAN.tag in found
    (bits,) = differences(SIDE, SIDE, bits_differ=True)
    assert "bits" in bits


def test_the_order_of_kernels_is_no_difference():
    """Groups run on several streams at once."""
    ours = dataclasses.replace(SIDE, kernels=SIDE.kernels[::-1])
    assert list(differences(SIDE, ours, bits_differ=False)) == []


def test_rows_mark_what_differs():
    plan = dataclasses.replace(
        PLAN, tag="ConvFwd_eng3_k2=8_k13=-1", x=None, refused=(), source="instant"
    )
    slower = dataclasses.replace(KERNEL, seconds=(1.0,))
    ours = Side(plan, "", (slower,), 1.0, "kernel")
    explained = PassExplanation(
        "fprop", "Cudnn", "", SIDE, ours, Ratio(1.0, 0.9, 1.1), "same", True, True, ()
    )
    alike, others = facts_of(explained)
    assert {what for what, _, mark, _ in others if mark == "≠"} == {"plan", "engine"}
    theirs = "2×4×9×11, strides 396/99/11/1, aligned to 32, float32"
    assert ["x", theirs, "", "not known"] in others
    assert alike["workspace"] == "1,024 bytes"
    assert "w" in alike


def layout(*sizes):
    return TensorLayout.of(torch.empty(sizes, device="meta"))


def test_html_is_escaped():
    kernel = dataclasses.replace(KERNEL, name="<script>alert(1)</script>")
    side = Side(PLAN, "", (kernel,), 3e-6, "kernel")
    explained = PassExplanation(
        "fprop", "Cudnn", "<b>why</b>", side, side, Ratio(1.0, 0.9, 1.1), "same", True, False,
        ("<i>difference</i>",),
    )  # fmt: skip
    call = ConvCall.of_layouts("float32", layout(*X.sizes), layout(*PLAN.w.sizes))
    text = Explanation(call, "<u>", None, (explained,), {})._repr_html_()
    for tag in ("<script", "<b>", "<i>", "<u>"):
        assert tag not in text
    for part in ("&lt;script&gt;", "eng38", "TENSOR_CORE", "2=8, 13=-1", "8×1×1"):
        assert part in text


@pytest.mark.parametrize(
    ("dtype", "channels", "options", "expected"),
    [
        ("float32", 64, {}, "only in float16, not in float32"),
        ("float16", 64, {"dilation": (2, 1)}, "only without dilation"),
        ("float16", 64, {"stride": (2, 1)}, "only with equal strides"),
        ("float16", 16, {}, "at least 32 channels, got 16"),
        ("float16", 64, {}, "some combinations"),
        ("float16", 64, {"flags": Flags(enabled=False)}, "torch.backends.cudnn.enabled is off"),
        ("float16", 64, {"flags": Flags(depthwise_kernel="native")}, "is 'native'"),
    ],
)
def test_why_a_depthwise_convolution_is_not_cudnns(dtype, channels, options, expected):
    call = ConvCall.of_layouts(
        dtype,
        layout(1, channels, 8, 8),
        layout(channels, 1, 3, 3),
        groups=channels,
        **options,
    )
    tensors = call.tensors("cpu", backward=False)
    assert expected in why("CudaDepthwise2d", call, tensors)


def test_why_other_dimensions_are_not_cudnns():
    depthwise = ConvCall.of_layouts(
        "float16", layout(1, 64, 4, 4, 4), layout(64, 1, 3, 3, 3), groups=64
    )
    tensors = depthwise.tensors("cpu", backward=False)
    assert "in one or two spatial dimensions" in why("CudaDepthwise3d", depthwise, tensors)
    audio = ConvCall.of_layouts("float16", layout(1, 16, 9), layout(16, 1, 3), groups=16)
    tensors = audio.tensors("cpu", backward=False)
    assert "at least 32 channels, got 16" in why("CudaDepthwise2d", audio, tensors)
    # An input of one dimension is made contiguous before its layout is looked at.
    strided = dataclasses.replace(audio, x=TensorLayout((1, 16, 9), (144, 1, 16)))
    tensors = strided.tensors("cpu", backward=False)
    assert "in float16 PyTorch uses cuDNN for depthwise" in why("Cudnn", strided, tensors)
    volume = torch.zeros(1, 64, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    strided = dataclasses.replace(depthwise, x=TensorLayout.of(volume))
    tensors = strided.tensors("cpu", backward=False)
    assert "with channels_last tensors" in why("Cudnn", strided, tensors)
    wide = ConvCall.of_layouts(
        "float32", layout(1, 2, 5), layout(2, 2, 3), dilation=(2,), transposed=True,
        output_padding=(1,),
    )  # fmt: skip
    on_gpu: Any = types.SimpleNamespace(x=types.SimpleNamespace(is_cuda=True))
    assert "output_padding (1) is the stride or more" in why("SlowTranspose2d", wide, on_gpu)
    assert "nothing rules cuDNN out" in why("CudnnTranspose", wide, on_gpu)


def test_bits_that_pytorch_does_not_repeat():
    numbers = iter([1.0, 1.0, 2.0, 1.0, 1.0])

    def theirs():
        return torch.tensor([next(numbers)])

    assert compare_bits(theirs, theirs(), torch.tensor([1.0])) == (True, True)
    assert compare_bits(theirs, torch.tensor([1.0]), torch.tensor([3.0])) == (False, False)
    assert next(numbers) == 1.0  # no more calls once it is clear


def choice(**changes):
    """As convtime.plan_cache() gives them."""
    return dataclasses.replace(
        PlanChoice(
            tag=PLAN.tag,
            source="instant",
            workspace_bytes=1024,
            numerical_notes=("TENSOR_CORE",),
            x=X,
            w=PLAN.w,
            y=PLAN.y,
            stride=(1, 1),
            padding=(0, 0),
            dilation=(1, 1),
            pass_name="fprop",
            policy="heuristic",
            device="cpu",
            dtype="float32",
            deterministic=False,
            allow_tf32=True,
            uses=1,
            rebuilds=0,
        ),
        **changes,
    )


def test_an_entry_of_the_plan_cache_is_compared_like_pytorchs_plan():
    ours = dataclasses.replace(SIDE, plan=choice().plan)
    assert list(differences(SIDE, ours, bits_differ=False)) == []


class FakeOracle(PlanOracle):
    answer = PlanLog()

    def ask(self, call, passes):
        return dict.fromkeys(passes, self.answer)


@pytest.fixture
def pretended_cudnn(monkeypatch):
    """Lets a CPU's convolution pass for cuDNN's, with a log and a plan cache of the test's own."""
    monkeypatch.setattr(
        ConvCall,
        "backend",
        lambda self, *_: "CudnnTranspose" if self.problem.transposed else "Cudnn",
    )
    monkeypatch.setattr(running, "PlanOracle", FakeOracle)

    def pretend(log, choices, fn=F.conv2d, arguments=None, backward=None, **options):
        monkeypatch.setattr(FakeOracle, "answer", log)
        monkeypatch.setattr(running, "plan_cache", lambda: choices)
        return explain(fn, *(arguments or example()), kwargs=options, backward=backward, **QUICK)

    return pretend


LOGGED = Plan(PLAN.tag, "heuristic", 1024, ("TENSOR_CORE",))


def test_plans_side_by_side(pretended_cudnn):
    logged = dataclasses.replace(LOGGED, x=X, refused=("ConvFwd_eng1",), compute_type="float32")
    found = pretended_cudnn(
        PlanLog(logged), (choice(), choice(pass_name="wgrad", tag="ConvBwdFilter_eng1"))
    )
    assert found.differences == ()
    (fprop,) = found.passes
    assert fprop.pytorch.plan.engine == fprop.convtime.plan.engine == 38
    assert fprop.pytorch.plan.knobs == fprop.convtime.plan.knobs == {2: 8, 13: -1}
    assert Explanation.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "refused plans" in found.details()


def test_the_last_fitting_choice_is_ours(pretended_cudnn):
    other = choice(tag="ConvFwd_eng2")
    found = pretended_cudnn(PlanLog(LOGGED), (choice(), other, choice(padding=(1, 1))))
    assert found.passes[0].convtime.plan.tag == "ConvFwd_eng2"
    assert any(text.startswith("fprop: tag: ") for text in found.differences)


def test_a_transposed_one_of_one_dimension_is_matched_with_what_cudnn_is_told(pretended_cudnn):
    def sizes(*numbers):
        return TensorDescriptor(sizes=numbers, strides=numbers, alignment=32, dtype="float32")

    def told(pass_name, **changes):
        return choice(
            pass_name=pass_name, w=sizes(4, 3, 1, 3), stride=(1, 2),
            **{"tag": f"Conv_{pass_name}_eng38", "x": sizes(2, 6, 1, 22), "y": sizes(2, 4, 1, 11),
               "padding": (0, 1), **changes},
        )  # fmt: skip

    choices = (
        told("fprop"),
        told("dgrad"),
        told("wgrad"),
        told("dgrad", x=sizes(2, 6, 1, 21), tag="Other_eng1"),
        told("fprop", y=sizes(2, 4, 1, 10), tag="Other_eng2"),
        told("wgrad", padding=(0, 0), tag="Other_eng3"),
    )
    found = pretended_cudnn(
        PlanLog(LOGGED),
        choices,
        F.conv_transpose1d,
        (torch.randn(2, 4, 11), torch.randn(4, 3, 3)),
        backward=True,
        stride=2,
        padding=1,
        output_padding=1,
        groups=2,
    )
    assert [explained.convtime.plan.tag for explained in found.passes] == [
        "Conv_dgrad_eng38",
        "Conv_fprop_eng38",
        "Conv_wgrad_eng38",
    ]


def test_a_plan_that_is_not_known_is_not_guessed(pretended_cudnn):
    found = pretended_cudnn(PlanLog(unknown="the child died"), (choice(),))
    assert found.passes[0].pytorch.plan is None
    assert "the child died" in str(found)
    assert len(found.differences) == 1
    found = pretended_cudnn(PlanLog(LOGGED), ())
    assert "no choice" in found.passes[0].convtime.no_plan
    assert len(found.differences) == 1


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_cudnns_plans_are_the_same_on_a_gpu(dtype):
    x = torch.randn(8, 32, 28, 28, device="cuda", dtype=dtype, requires_grad=True)
    module = convtime.nn.Conv2d(32, 64, 3, padding=1, device="cuda", dtype=dtype)
    module = module.to(memory_format=torch.channels_last)
    found = explain(module, x, **QUICK)
    assert [explained.name for explained in found.passes] == ["fprop", "dgrad", "wgrad"]
    assert found.backend == "Cudnn"
    assert found.differences == (), str(found)
    for explained in found.passes:
        assert explained.pytorch.plan.tag == explained.convtime.plan.tag
        assert explained.pytorch.plan.x.sizes == (8, 32, 28, 28)
        assert explained.pytorch.kernels
        assert 0.5 < explained.ratio.value < 2
        assert explained.pytorch.method == "kernel"


@pytest.mark.cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_the_time_goes_into_is_told_on_a_gpu(layout):
    x = torch.randn(8, 64, 56, 56, device="cuda").to(memory_format=layout)
    w = torch.randn(64, 64, 3, 3, device="cuda").to(memory_format=layout)
    found = explain(F.conv2d, x, w, kwargs={"padding": 1}, backward=True, **QUICK)
    for explained in found.passes:
        roles = [part.role for part in parts(explained.pytorch.kernels)]
        assert "main kernel" in roles, found.details()
        assert "other" not in roles, found.details()
    assert str(found).count("  main kernel") == len(found.passes)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "kind", ["Conv1d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
)
def test_other_kinds_run_pytorchs_plans_on_a_gpu(kind, layout):
    rank = int(kind[-2])
    if rank == 1 and layout == "channels_last":
        pytest.skip("there is no such layout")
    module = getattr(convtime.nn, kind)(16, 32, 3, stride=2, padding=1, device="cuda")
    x = torch.randn(2, 16, *SPATIAL[:rank], device="cuda", requires_grad=True)
    if layout == "channels_last":
        memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[rank]
        module = module.to(memory_format=memory_format)
    found = explain(module, x, **QUICK)
    assert found.backend == ("CudnnTranspose" if "Transpose" in kind else "Cudnn")
    assert found.differences == (), str(found)
    for explained in found.passes:
        assert explained.pytorch.plan.tag == explained.convtime.plan.tag, str(found)
        assert explained.pytorch.plan.x.sizes == found.call.problem.cudnn_problem().x


@pytest.mark.cuda
def test_pytorchs_depthwise_kernel_is_run_on_a_gpu():
    x = torch.randn(2, 32, 28, 28, device="cuda")
    w = torch.randn(32, 1, 3, 3, device="cuda")
    found = explain(F.conv2d, x, w, kwargs={"groups": 32}, **QUICK)
    assert found.backend == "CudaDepthwise2d"
    assert "float16" in found.why
    assert found.differences == ()
    assert "depthwise" in found.passes[0].convtime.kernels[0].name.lower()


@pytest.mark.cuda
def test_a_difference_is_found_on_a_gpu():
    x = torch.randn(1, 64, 56, 56, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda")
    with dataclasses.replace(Flags.current(), allow_tf32=True).applied():
        usual = explain(F.conv2d, x, w, **QUICK).passes[0].convtime.plan
    with dataclasses.replace(Flags.current(), allow_tf32=False).applied():
        pytorch = explain(F.conv2d, x, w, **QUICK).passes[0].pytorch
    other = pytorch.plan
    assert other is not None, pytorch.no_plan
    ours = explain(convtime.ops.conv2d, x, w, kwargs={"policy": other.tag}, **QUICK)
    assert other.tag != usual.tag
    assert any("tag" in text for text in ours.differences)
    assert ours.passes[0].convtime.plan.tag == other.tag
