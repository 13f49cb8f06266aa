"""Where layers come from: ResNet-50, CSV files, models."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime.conv.problem import ConvLayer, ConvProblem
from convtime.conv.sources.csv_file import MOST_LAYERS, from_csv
from convtime.conv.sources.model import LoadedModel, from_model, load_model
from convtime.conv.sources.resnet50 import resnet50
from convtime.core.errors import InputError
from tests.helpers import BENCHMARKS

DEEPBENCH = BENCHMARKS / "data" / "deepbench_conv_training.csv"
HEADER = "w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h"


def test_resnet50_has_23_distinct_and_53_convolutions():
    layers = resnet50(batch=1)
    assert len(layers) == len({layer.problem for layer in layers}) == 23
    assert sum(layer.count for layer in layers) == 53
    # 4.09 GMACs is the literature's number for v1.5 (v1 has 3.86); 2.05 M of them are in the
    # last layer, which is no convolution.
    macs = sum(layer.count * layer.problem.flops for layer in layers) / 2
    assert macs + 2048 * 1000 == pytest.approx(4.09e9, rel=1e-3)
    weights = sum(
        layer.count
        * layer.problem.out_channels
        * layer.problem.in_channels
        * layer.problem.kernel_size[0]
        * layer.problem.kernel_size[1]
        for layer in layers
    )
    # Parameters of torchvision's resnet50, less batch normalisations' and the last layer's.
    assert weights == 25_557_032 - 2 * 26_560 - (2048 * 1000 + 1000)


def test_resnet50_is_torchvisions():
    pytest.importorskip("torchvision")
    found = from_model(load_model("torchvision.models:resnet50", (2, 3, 224, 224))).layers
    # A block's downsample runs after its convolutions but is equal to them in ours too.
    theirs, ours = (
        {layer.problem: sorted(layer.names) for layer in layers}
        for layers in (found, resnet50(batch=2))
    )
    assert theirs == ours


def test_csv_of_deepbench():
    layers = from_csv(DEEPBENCH)
    lines = DEEPBENCH.read_text().splitlines()[1:]
    assert sum(layer.count for layer in layers) == len(lines) == 90
    first = layers[0].problem
    assert layers[0].names == ("line 2",)
    assert first.input_shape == (4, 1, 161, 700)
    assert (first.out_channels, first.kernel_size) == (32, (5, 20))
    assert (first.padding, first.stride) == ((0, 0), (2, 2))


@pytest.mark.parametrize("batch", [1.5, "x", -1])
def test_csv_batch_is_a_whole_number(batch: object) -> None:
    with pytest.raises(InputError, match=f"batch must be a whole number from 0 .* got {batch!r}"):
        from_csv(DEEPBENCH, batch=batch)  # type: ignore[arg-type]


def test_csv_path_without_null_characters() -> None:
    with pytest.raises(InputError, match="must not contain a null character; got 'a"):
        from_csv("a\0.csv")


def test_csv_batch_takes_the_place_of_the_column():
    layers = from_csv(DEEPBENCH, batch=3)
    assert {layer.problem.batch for layer in layers} == {3}
    # Lines that differed in the batch only are one problem now.
    assert layers[0].names == ("line 2", "line 3", "line 4", "line 5")


def test_csv_optional_columns_in_any_order(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(
        "\ufeffname,dilation_h,dilation_w,groups, " + HEADER + "\n"
        '"a, b",2,3,4,20,30,8,1,16,3,5,1,2,1,2\n'
        "\n"
        ",1,1,1,20,30,8,1,16,3,5,1,2,1,2\n",
        encoding="utf-8",
    )
    first, second = from_csv(path)
    assert first.names == ("a, b",)
    assert first.problem == ConvProblem(
        batch=1,
        in_channels=8,
        size=(30, 20),
        out_channels=16,
        kernel_size=(5, 3),
        stride=(2, 1),
        padding=(2, 1),
        dilation=(2, 3),
        groups=4,
    )
    assert second.name == "line 4"


GOOD = "20,30,8,1,16,3,3,1,1,1,1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; the first line must name the columns w,h,c"),
        ("\n\n", "is empty"),
        (HEADER + "\n", "no layers"),
        (HEADER.replace(",k", "") + "\n" + GOOD, r"line 1: the header lacks column\(s\) k"),
        (HEADER + ",gruops\n" + GOOD + ",1", "line 1: column 'gruops' is unknown"),
        (HEADER + ",w\n" + GOOD + ",1", "line 1: the header has column 'w' more than once"),
        (f"{HEADER}\n{GOOD}\n1,2,3", "line 3: has 3 values for the header's 11 columns"),
        (f"{HEADER}\n{GOOD}\n{GOOD},1", "line 3: has 12 values"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('16', 'many')}", "line 3: column k is 'many', but must"),
        (f"{HEADER}\n20,30,8,1,16,3,3,-1,1,1,1", "line 2: column pad_w is '-1'.*from 0 to"),
        (f"{HEADER}\n20,30,8,1,16,3,3,1,1,1,0", "line 2: column stride_h is '0'.*from 1 to"),
        (f"{HEADER}\n20,30,8,1.5,16,3,3,1,1,1,1", "line 2: column n is '1.5'"),
        (f"{HEADER}\n20,30,8,1,,3,3,1,1,1,1", "line 2: column k is ''"),
        (f"{HEADER}\n{'9' * 5000},30,8,1,16,3,3,1,1,1,1", "line 2: column w is '9999"),
        (f"{HEADER}\n20,30,8,1,16,3,3,{'0' * 5000},1,1,1", "line 2: column pad_w is '0000"),
        (f"{HEADER}\n20,30,8,1,16,3,33,1,1,1,1", "line 2: layer line 2: the kernel spans 33"),
        (f'{HEADER}\n{GOOD}\n"20,30', "line 3: is not CSV"),
    ],
)
def test_csv_errors_name_file_and_line(tmp_path, text, says):
    path = tmp_path / "layers.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"layers.csv.*{says}"):
        from_csv(path)


def test_repeated_lines_of_a_csv_cost_little_and_too_many_different_ones_are_refused(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(f"{HEADER}\n" + f"{GOOD}\n" * 3 * MOST_LAYERS)
    (layer,) = from_csv(path)
    assert layer.count == 3 * MOST_LAYERS
    sizes = range(1, MOST_LAYERS + 1)
    lines = [f"{size},30,8,1,16,1,1,0,0,1,1" for size in sizes]
    path.write_text("\n".join([HEADER, *lines, *lines]))
    assert len(from_csv(path)) == MOST_LAYERS
    path.write_text("\n".join([HEADER, *lines, *lines, GOOD]))
    says = f"line {2 * MOST_LAYERS + 2}: is the {MOST_LAYERS + 1}th different layer"
    with pytest.raises(InputError, match=says):
        from_csv(path)


def test_csv_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: cannot be read \(No such file"):
        from_csv(tmp_path / "none.csv")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=f"^{path}: cannot be read, since it is not a regular"):
            from_csv(path)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"w,h\n\xff\xfe")
    with pytest.raises(InputError, match="is not a text file in UTF-8"):
        from_csv(binary)


MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, (3, 5), stride=(1, 2), padding=(1, 2))
        self.body = nn.ModuleList(
            nn.Conv2d(8, 8, 3, padding="same", groups=4, bias=False) for _ in range(3)
        )
        self.valid = nn.Conv2d(8, 4, 3, padding="valid", dilation=2, padding_mode="circular")
        self.unused = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        assert not self.training and not torch.is_grad_enabled()
        x = self.stem(x)
        for conv in self.body:
            x = conv(input=x)
        return self.valid(x), self.valid(x[0])

LAST = []

def net():
    LAST.append(Net())
    return LAST[-1]

class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Conv1d(3, 4, 5, padding="valid")
        self.up = nn.ConvTranspose1d(4, 2, 3, stride=3, padding=1, bias=False)
        self.volume = nn.Conv3d(1, 2, (1, 2, 3))
        self.grow = nn.ConvTranspose3d(2, 2, 2, stride=2, output_padding=(0, 1, 1))

    def forward(self, x):
        y = self.up(self.audio(x))
        self.up(self.audio(x), output_size=[y.shape[-1] + 2])
        return self.grow(self.volume(x[:, None, :, :, None].expand(-1, -1, -1, -1, 4)))

class Half(Net):
    def __init__(self):
        super().__init__()
        self.bfloat16()

def linear():
    return nn.Linear(3, 3)

def only_conv():
    return nn.Conv2d(3, 2, 1)

def broken():
    raise RuntimeError("first line\\nsecond line")

def leaves():
    raise SystemExit("bye")

def text():
    return "resnet"

class Odd:
    @property
    def boom(self):
        raise SystemExit("boom")

odd = Odd()
number = 3
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A package `mymodels` in the working directory."""
    package = tmp_path / "mymodels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODELS)
    (package / "needs.py").write_text("import not_installed_anywhere\n")
    (package / "syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "mymodels"]:
        del sys.modules[name]


def test_model_gathers_every_distinct_call(models):
    stem, body, valid, single = from_model(load_model("mymodels.nets:net", (2, 3, 16, 20))).layers
    assert stem == ConvLayer(
        ("stem",),
        ConvProblem(
            batch=2,
            in_channels=3,
            size=(16, 20),
            out_channels=8,
            kernel_size=(3, 5),
            stride=(1, 2),
            padding=(1, 2),
            bias=True,
        ),
    )
    assert body == ConvLayer(
        ("body.0", "body.1", "body.2"),
        ConvProblem(
            batch=2,
            in_channels=8,
            size=(16, 10),
            out_channels=8,
            kernel_size=(3, 3),
            padding="same",
            groups=4,
        ),
    )
    assert valid.problem.padding == (0, 0)
    assert valid.problem.dilation == (2, 2)
    assert valid.problem.padding_mode == "circular"
    # The second call had no batch dimension.
    assert (valid.problem.batch, single.problem.batch) == (2, 1)
    assert valid.names == single.names == ("valid",)


def test_every_kind_of_convolution_is_gathered(models):
    layers = from_model(load_model("mymodels.nets:Kinds", (2, 3, 10))).layers
    audio, up, longer, volume, grow = (layer.problem for layer in layers)
    assert [problem.kind.layer for problem in (audio, up, volume, grow)] == [
        "Conv1d",
        "ConvTranspose1d",
        "Conv3d",
        "ConvTranspose3d",
    ]
    assert audio.padding == (0,)
    assert (up.size, up.output_padding, up.output_size) == ((6,), (0,), (16,))
    assert (longer.output_padding, longer.output_size) == ((2,), (18,))
    assert volume.input_shape == (2, 1, 3, 10, 4)
    assert (grow.size, grow.output_padding) == ((3, 9, 2), (0, 1, 1))


def test_a_model_is_left_in_its_mode(models):
    loaded = load_model("mymodels.nets:net", (2, 3, 16, 20))
    model: Any = loaded.module
    model.stem.eval()
    from_model(loaded)
    assert model.training
    assert not model.stem.training


def test_model_takes_its_own_dtype_and_a_bare_convolution(models):
    assert len(from_model(load_model("mymodels.nets:Half", (1, 3, 16, 20))).layers) == 3
    (only,) = from_model(load_model("mymodels.nets:only_conv", (1, 3, 4, 4))).layers
    assert only.name == "Conv2d"


@pytest.mark.parametrize("shape", [(1, 3, 16, 20), (1, 7, 16, 20)])
def test_model_keeps_no_hooks(models, shape):
    try:
        from_model(load_model("mymodels.nets:net", shape))
    except InputError:
        assert shape[1] == 7
    model = sys.modules["mymodels.nets"].LAST[-1]
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("resnet50", "the model is 'resnet50', but must look like package.module:factory"),
        ("mymodels.nets:", "must look like"),
        ("nowhere:net", "module 'nowhere' was not found"),
        ("mymodels.nowhere:net", "module 'mymodels.nowhere' was not found"),
        ("mymodels.needs:net", "importing 'mymodels.needs' raised ModuleNotFoundError: No module"),
        ("mymodels.syntax:net", "importing 'mymodels.syntax' raised SyntaxError"),
        ("mymodels.nets:nett", "looking up .*:nett raised AttributeError: .* no attribute 'nett'"),
        ("mymodels.nets:odd.boom", "looking up mymodels.nets:odd.boom raised SystemExit: boom"),
        ("mymodels.nets:number", "is a int, but must be callable"),
        ("mymodels.nets:broken", r"mymodels.nets:broken\(\) raised RuntimeError: first line$"),
        ("mymodels.nets:leaves", r"mymodels.nets:leaves\(\) raised SystemExit: bye"),
        ("mymodels.nets:text", r"returned a str, but must return a torch.nn.Module"),
        ("mymodels.nets:linear", r"shape \(1, 3\), ran no convolution of torch.nn"),
        ("mymodels.nets:net", r"called on shape \(1, 3\), raised RuntimeError"),
    ],
)
def test_model_errors_say_which_step(models, spec, says):
    with pytest.raises(InputError, match=says):
        from_model(load_model(spec, (1, 3)))


def changed_by_hook(change: Callable[[torch.Tensor], object]) -> torch.nn.Module:
    layer = torch.nn.ConvTranspose2d(2, 3, 2, stride=2)
    layer.register_forward_hook(lambda module, args, output: change(output))
    return layer


class Cropped(torch.nn.ConvTranspose2d):
    def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, output_size=list(like.shape[-2:]))[..., 1:, 1:]


class Unlike(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module, *sizes: int) -> None:
        super().__init__()
        self.layer = layer
        self.like = torch.empty(sizes)

    def forward(self, x: torch.Tensor) -> object:
        return self.layer(x, self.like)


@pytest.mark.parametrize(
    ("module", "output_padding"),
    [
        (changed_by_hook(lambda y: F.pad(y, (0, 1, 0, 1))), (0, 0)),
        (changed_by_hook(lambda y: y[..., 1:, 1:]), (0, 0)),
        (changed_by_hook(lambda y: (y, None)), (0, 0)),
        (Unlike(Cropped(2, 3, 2, stride=2), 8, 9), (0, 1)),
    ],
)
def test_a_layers_geometry_is_that_of_its_own_computation(
    module: torch.nn.Module, output_padding: tuple[int, ...]
) -> None:
    found = from_model(LoadedModel("my:net", module, torch.randn(1, 2, 4, 4)))
    (problem,) = (layer.problem for layer in found.layers)
    assert (problem.size, problem.output_padding) == ((4, 4), output_padding)


def test_a_subclass_that_pads_by_itself_is_gathered_as_it_computes() -> None:
    class Same(torch.nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.pad(x, (0, 1, 0, 1))
            return F.conv2d(x, self.weight, self.bias, 2, 1)

    found = from_model(LoadedModel("my:net", Same(3, 4, 3), torch.randn(2, 3, 8, 10)))
    (problem,) = (layer.problem for layer in found.layers)
    assert (problem.size, problem.stride, problem.padding) == ((9, 11), (2, 2), (1, 1))


@pytest.mark.parametrize("namespace", [torch.nn, convtime.nn])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", (2, 1)])
def test_what_a_layer_pads_is_no_part_of_its_input(
    namespace: Any, mode: str, padding: str | tuple[int, ...]
) -> None:
    layer = namespace.Conv2d(3, 4, (4, 2), padding=padding, padding_mode=mode)
    found = from_model(LoadedModel("my:net", layer, torch.randn(2, 3, 8, 10)))
    (problem,) = (layer.problem for layer in found.layers)
    assert (problem.size, problem.padding, problem.padding_mode) == ((8, 10), padding, mode)


def test_a_layer_that_a_hook_keeps_from_running_is_not_gathered(recwarn) -> None:
    class Fallback(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.refused = torch.nn.Conv2d(3, 4, 1)
            self.refused.register_forward_pre_hook(self.refuse)
            self.used = torch.nn.Conv2d(3, 4, 3)

        def refuse(self, module: torch.nn.Module, args: object) -> None:
            raise ValueError

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(ValueError):
                return self.refused(x)
            return self.used(x)

    found = from_model(LoadedModel("my:net", Fallback(), torch.randn(2, 3, 8, 8)))
    assert [layer.names for layer in found.layers] == [("used",)]
    # Warnings of resources may be of what earlier tests left.
    told = [each for each in recwarn if not issubclass(each.category, ResourceWarning)]
    assert [str(each.message) for each in told] == []


class Routed(torch.nn.Module):
    """Two experts, one of which gets nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.busy, self.idle = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(3, 4, 1, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.busy(x), self.idle(x[:0]), self.idle(x[:0, :, :0])


def test_a_call_on_an_empty_input_is_left_out_and_named() -> None:
    found = from_model(LoadedModel("my:net", Routed(), torch.randn(2, 3, 8, 8)))
    assert [layer.names for layer in found.layers] == [("busy",)]
    assert found.empty == ("idle", "idle")
    with pytest.raises(InputError, match=r"ran no convolution .* on empty inputs \(busy, idle"):
        from_model(LoadedModel("my:net", Routed(), torch.randn(0, 3, 8, 8)))
