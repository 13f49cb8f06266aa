"""Where layers come from: ResNet-50, CSV files, models."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from convtime.layers import (
    ConvLayer,
    InputError,
    distinct,
    from_csv,
    from_model,
    load_model,
    resnet50,
)

DEEPBENCH = Path(__file__).parents[1] / "benchmarks" / "data" / "deepbench_conv_training.csv"
HEADER = "w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h"


def layer(**changes):
    fields: dict[str, Any] = {
        "names": ("a",),
        "batch": 2,
        "in_channels": 4,
        "size": (9, 11),
        "out_channels": 6,
        "kernel_size": (3, 5),
    }
    return ConvLayer(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (2, 3), "padding": (1, 2)},
        {"dilation": (2, 1), "groups": 2},
        {"padding": "same"},
        {"padding": "same", "kernel_size": (2, 4), "dilation": (1, 3)},
        {"padding": (2, 1), "padding_mode": "reflect", "bias": True},
    ],
)
def test_output_size_is_pytorchs(changes):
    problem = layer(**changes)
    module = torch.nn.Conv2d(
        problem.in_channels,
        problem.out_channels,
        problem.kernel_size,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
        padding_mode=problem.padding_mode,
    )
    output = module(torch.zeros(problem.input_shape))
    assert problem.output_size == tuple(output.shape[2:])


def module(problem):
    options = {"output_padding": problem.output_padding} if problem.transposed else {}
    return getattr(torch.nn, problem.kind)(
        problem.in_channels,
        problem.out_channels,
        problem.kernel_size,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
        bias=problem.bias,
        **options,
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (2, 1, 3)},
        {"groups": 2, "padding": (1, 2, 0)},
        {"bias": True, "dilation": (1, 2, 3)},
        {
            "transposed": True,
            "stride": (2, 3, 1),
            "dilation": (1, 1, 2),
            "output_padding": (1, 2, 1),
        },
    ],
)
def test_every_kind_has_pytorchs_shapes_and_flops(rank, transposed, changes):
    changes = {"transposed": transposed} | changes
    problem = layer(
        **{"size": (9, 11, 8)[:rank], "kernel_size": (3, 5, 2)[:rank]}
        | {key: one[:rank] if isinstance(one, tuple) else one for key, one in changes.items()}
    )
    theirs = module(problem)
    with FlopCounterMode(display=False) as counter:
        output = theirs(torch.zeros(problem.input_shape))
    assert problem.flops == counter.get_total_flops()
    assert problem.output_shape == output.shape
    assert problem.weight_shape == theirs.weight.shape
    assert ConvLayer.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


def test_layers_written_when_there_were_two_dimensions_are_read():
    old = layer(stride=(2, 1)).to_dict()
    old["height"], old["width"] = old.pop("size")
    del old["transposed"], old["output_padding"]
    assert ConvLayer.from_dict(old) == layer(stride=(2, 1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"in_channels": -4}, "in_channels is -4"),
        ({"size": (9, 2**31)}, "width is 2147483648"),
        ({"size": (1, 2, 3, 4)}, r"size is \(1, 2, 3, 4\), but must be one, two or three"),
        ({"size": (9,), "kernel_size": (3,), "stride": (0,)}, r"stride \(length\) is 0"),
        ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\), but must be 2 number\(s\)"),
        ({"output_padding": (1, 0)}, "only a transposed one has any"),
        ({"transposed": True, "padding": "same"}, "no padding but zeros, given in numbers"),
        ({"transposed": True, "padding_mode": "reflect"}, "no padding but zeros"),
        ({"transposed": True, "output_padding": (0, 1)}, r"output_padding is \(0, 1\), but must"),
        ({"transposed": True, "padding": (6, 0)}, "leaves nothing of the output's height"),
        ({"stride": (1, 0)}, r"stride \(width\) is 0"),
        ({"dilation": (0, 1)}, r"dilation \(height\) is 0"),
        ({"padding": (-1, 0)}, r"padding \(height\) is -1"),
        ({"padding": "valid"}, "padding is 'valid'"),
        ({"padding": "same", "stride": (2, 2)}, "needs stride 1"),
        ({"padding_mode": "ones"}, "padding_mode is 'ones'"),
        ({"groups": 3}, r"in_channels \(4\) is not a multiple of groups \(3\)"),
        ({"groups": 4}, r"out_channels \(6\) is not a multiple of groups \(4\)"),
        ({"kernel_size": (10, 5)}, "spans 10 pixels of height, more than the 9"),
        ({"dilation": (1, 3)}, "spans 13 pixels of width, more than the 11"),
        ({"names": ()}, "at least one name"),
    ],
)
def test_wrong_numbers_are_refused(changes, says):
    with pytest.raises(InputError, match=says):
        layer(**changes)


def test_label_tells_layers_apart():
    assert layer().label == "2×4×9×11 → 6, 3×5"
    rest = layer(stride=(2, 2), padding=(0, 1), groups=2, bias=True, padding_mode="circular")
    assert rest.label == "2×4×9×11 → 6, 3×5 s2 p0×1 g2 circular bias"
    grown = layer(
        size=(9,), kernel_size=(3,), stride=(2,), transposed=True, output_padding=(1,), padding=(1,)
    )
    assert grown.label == "2×4×9 → 6, 3 transposed s2 p1 o1"


def test_distinct_keeps_each_problem_once_with_all_names():
    found = distinct([layer(names=("a",)), layer(names=("b",), batch=3), layer(names=("c", "d"))])
    assert [(one.names, one.count, one.batch) for one in found] == [
        (("a", "c", "d"), 3, 2),
        (("b",), 1, 3),
    ]


def test_resnet50_has_23_distinct_and_53_convolutions():
    problems = resnet50(batch=1)
    assert len(problems) == len(set(problems)) == 23
    assert sum(problem.count for problem in problems) == 53
    # 4.09 GMACs is the literature's number for v1.5 (v1 has 3.86); 2.05 M of them are in the
    # last layer, which is no convolution.
    macs = sum(problem.count * problem.flops for problem in problems) / 2
    assert macs + 2048 * 1000 == pytest.approx(4.09e9, rel=1e-3)
    weights = sum(
        p.count * p.out_channels * p.in_channels * p.kernel_size[0] * p.kernel_size[1]
        for p in problems
    )
    # Parameters of torchvision's resnet50, less batch normalisations' and the last layer's.
    assert weights == 25_557_032 - 2 * 26_560 - (2048 * 1000 + 1000)


def test_resnet50_is_torchvisions():
    pytest.importorskip("torchvision")
    found = from_model(load_model("torchvision.models:resnet50", (2, 3, 224, 224)))
    # A block's downsample runs after its convolutions but is equal to them in ours too.
    assert {p: sorted(p.names) for p in found} == {p: sorted(p.names) for p in resnet50(batch=2)}


def test_csv_of_deepbench():
    problems = from_csv(DEEPBENCH)
    lines = DEEPBENCH.read_text().splitlines()[1:]
    assert sum(problem.count for problem in problems) == len(lines) == 90
    first = problems[0]
    assert first.names == ("line 2",)
    assert first.input_shape == (4, 1, 161, 700)
    assert (first.out_channels, first.kernel_size) == (32, (5, 20))
    assert (first.padding, first.stride) == ((0, 0), (2, 2))


def test_csv_batch_takes_the_place_of_the_column():
    problems = from_csv(DEEPBENCH, batch=3)
    assert {problem.batch for problem in problems} == {3}
    # Lines that differed in the batch only are one problem now.
    assert problems[0].names == ("line 2", "line 3", "line 4", "line 5")


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
    assert first == ConvLayer(
        names=("other names make no difference",),
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
    assert first.name == "a, b"
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
    stem, body, valid, single = from_model(load_model("mymodels.nets:net", (2, 3, 16, 20)))
    common: dict[str, Any] = {"size": (16, 10), "batch": 2}
    assert stem == ConvLayer(
        names=("x",),
        batch=2,
        in_channels=3,
        size=(16, 20),
        out_channels=8,
        kernel_size=(3, 5),
        stride=(1, 2),
        padding=(1, 2),
        bias=True,
    )
    assert body == ConvLayer(
        names=("x",),
        **common,
        in_channels=8,
        out_channels=8,
        kernel_size=(3, 3),
        padding="same",
        groups=4,
    )
    assert body.names == ("body.0", "body.1", "body.2")
    assert valid.padding == (0, 0)
    assert valid.dilation == (2, 2)
    assert valid.padding_mode == "circular"
    assert (valid.batch, single.batch) == (2, 1)  # the second call had no batch dimension
    assert valid.names == single.names == ("valid",)


def test_every_kind_of_convolution_is_gathered(models):
    audio, up, longer, volume, grow = from_model(load_model("mymodels.nets:Kinds", (2, 3, 10)))
    assert [one.kind for one in (audio, up, volume, grow)] == [
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
    assert len(from_model(load_model("mymodels.nets:Half", (1, 3, 16, 20)))) == 3
    (only,) = from_model(load_model("mymodels.nets:only_conv", (1, 3, 4, 4)))
    assert only.name == "Conv2d"


@pytest.mark.parametrize("shape", [(1, 3, 16, 20), (1, 7, 16, 20)])
def test_model_keeps_no_hooks(models, shape):
    try:
        from_model(load_model("mymodels.nets:net", shape))
    except InputError:
        assert shape[1] == 7
    model = sys.modules["mymodels.nets"].LAST[-1]
    assert not any(module._forward_hooks for module in model.modules())


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


def test_model_refuses_an_empty_batch(models):
    with pytest.raises(InputError, match="batch is 0"):
        from_model(load_model("mymodels.nets:net", (0, 3, 16, 20)))
