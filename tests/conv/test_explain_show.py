"""An explanation as text: what its reader came for, first."""

import dataclasses

import pytest

from convtime.conv import kernels
from convtime.conv.call import ConvCall
from convtime.conv.explanation import Explanation, PassExplanation, Side
from convtime.conv.plan_choice import Plan
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from tests.helpers import ROOT
from tests.helpers.convolutions import dense
from tests.helpers.figures import check_drawn, table
from tests.helpers.recorded import layers
from tests.helpers.texts import flat

PLAN = Plan(
    tag="ConvFwd_eng38_k2=8_k13=1",
    source="heuristic",
    workspace_bytes=1024,
    numerical_notes=("TENSOR_CORE",),
    compute_type="float32",
)


def side(measured: Measurement, plan: Plan | None = PLAN, no_plan: str = "") -> Side:
    return Side(plan, no_plan, measured.activities, measured.median, measured.method.used)


def explanation(ours: Side | None = None, *differences: str) -> Explanation:
    """ResNet-50's layer1.0.conv2 in NCHW as an H200 ran it, and what convtime is said to have."""
    recorded = layers()["float32 nchw layer1.0.conv2"]
    convtime = side(recorded.convtime, dataclasses.replace(PLAN, source="instant"))
    explained = PassExplanation(
        name="fprop", backend="Cudnn", why="nothing rules cuDNN out",
        pytorch=side(recorded.pytorch), convtime=convtime if ours is None else ours,
        ratio=recorded.ratio, verdict=recorded.verdict, bit_identical=True, pytorch_repeats=True,
        differences=differences,
    )  # fmt: skip
    call = ConvCall.of_layouts(
        "float32", dense(64, 64, 56, 56), dense(64, 64, 3, 3), padding=(1, 1)
    )
    return Explanation(call, "cuda:0", None, (explained,), {})


def test_what_both_run_is_said_once_and_first_what_the_time_goes_into() -> None:
    assert str(explanation()).splitlines() == [
        "conv2d of 64×64×56×56 by 64×64×3×3, float32, cuda:0, padding 1×1: PyTorch and convtime "
        "run the same",
        "",
        "fprop: PyTorch and convtime run the same",
        "  backend:  Cudnn: nothing rules cuDNN out",
        "  plan:     ConvFwd_eng38_k2=8_k13=1",
        "  time:     PyTorch 138.1 µs, convtime 138.2 µs (kernel); convtime/PyTorch 1.0011 "
        "[0.9986, 1.0039], same",
        "  of it:    63.4 of 138.1 µs are conversions between NCHW and NHWC",
        "",
        "  goes into                    time  kernels",
        "  " + "─" * 115,
        "  main kernel        73.20 µs,  53%  "
        "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x32",
        "  layout conversion  63.38 µs,  46%  2 × nchwToNhwcKernel, nhwcToNchwKernel",
        "  filling            1.056 µs,   1%  memset",
    ]
    assert repr(explanation()) == (
        "<convtime.conv.Explanation conv2d of 64×64×56×56 by 64×64×3×3, float32, cuda:0, padding "
        "1×1: "
        "PyTorch and convtime run the same>"
    )
    told = flat(explanation())
    assert str(explanation()) in explanation().details()
    for once in ("knobs: 2=8, 13=1", "execute_segment_k_off_kernel__5x_cudnn"):
        assert told.count(once) == 1
    assert "not known: x, w, y, padding, stride, dilation" in told
    assert "selected by heuristic instant" in told
    assert "73.20 µs 73.02 µs main kernel 30×4×1 384×1×1 sm90_xmma_fprop_implicit_gemm" in told


def test_what_differs_stands_side_by_side() -> None:
    recorded = layers()["float32 nchw layer1.0.conv1"].convtime
    ours = side(recorded, dataclasses.replace(PLAN, tag="ConvFwd_eng3"))
    found = explanation(ours, "tag: PyTorch has one, convtime another", "the kernels differ")
    told = str(found)
    assert told.splitlines()[0].endswith("PyTorch and convtime DIFFER in fprop")
    assert "  differences:  tag: PyTorch has one, convtime another\n" in told
    assert "                the kernels differ\n" in told
    assert "plan:         PyTorch ConvFwd_eng38_k2=8_k13=1, convtime ConvFwd_eng3" in told
    assert "PyTorch: 63.4 of 138.1 µs are conversions between NCHW and NHWC" in told
    (main,) = [line for line in told.splitlines() if line.startswith("  main kernel")]
    assert "73.20 µs,  53%  sm90_xmma" in main
    assert main.endswith("29.28 µs, 100%  cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4")
    full = flat(found)
    for part in ("plan ConvFwd_eng38_k2=8_k13=1 ≠ ConvFwd_eng3", "kernels of PyTorch:"):
        assert part in full
    assert "kernels of convtime:" in full


def test_a_figure_divides_the_time_by_role() -> None:
    (figure,) = explanation().figures()
    drawn = table(figure, "row", "time")
    assert drawn["row"] == ["fprop, PyTorch"] * 3 + ["fprop, convtime"] * 3
    assert drawn["series"][:3] == ["main kernel", "layout conversion", "filling"]
    assert drawn["time"][:3] == pytest.approx([73.2, 63.38, 1.056], rel=1e-3)
    check_drawn(figure)
    found = explanation()
    nothing = dataclasses.replace(found.passes[0].pytorch, kernels=())
    idle = dataclasses.replace(found.passes[0], pytorch=nothing, convtime=nothing)
    assert [*dataclasses.replace(found, passes=(idle,)).figures()] == []


def test_the_documentation_shows_what_is_printed() -> None:
    folder = ROOT / "docs" / "reference"
    pages = (folder / "reading-results.md", folder / "reading-other-results.md")
    page = "".join(path.read_text("utf-8") for path in pages)
    layer = layers()["float32 nchw layer1.0.conv2"]
    compared = Comparison({"pytorch": layer.pytorch, "convtime": layer.convtime})
    _, _, of_it = str(explanation()).partition("same\n  of it:")
    for printed in (layer.pytorch, layer.pytorch.details(), compared, f"  of it:{of_it}"):
        assert f"```text\n{printed}\n```" in page
    roles = [getattr(kernels, name) for name in dir(kernels) if name.isupper() and name[0] != "_"]
    assert len(roles) == 10
    for role in roles:
        assert f"`{role}`" in page
