"""Every engine of cuDNN for a convolution; PyTorch's choice is one of them."""

import dataclasses
import itertools
import types
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime.cli import main
from convtime.cli.exit_codes import BAD_INPUT, DONE
from convtime.conv import engine_listing as running
from convtime.conv.call import ConvCall, TensorLayout
from convtime.conv.engine_table import EngineResult, EngineTable, KnobRange, PassEngines
from tests.helpers.figures import check_drawn, table
from tests.helpers.measurements import make
from tests.helpers.texts import flat


def make_table() -> EngineTable:
    """A table as a GPU gives it: one engine runs faster than PyTorch's, one is less exact."""
    call = ConvCall.of_layouts(
        "float16",
        TensorLayout((8, 64, 28, 28), (50176, 784, 28, 1)),
        TensorLayout((64, 64, 3, 3), (576, 9, 3, 1)),
        padding=(1, 1),
    )
    alone: dict[str, Any] = {"activities": (), "sm_clocks_hz": ()}
    usual, fast = make(seconds=(20e-6,) * 9, **alone), make(seconds=(10e-6,) * 9, **alone)
    ran = EngineResult(
        "ConvFwd_eng1_k2=8",
        (("instant", 0), ("a", 0)),
        (KnobRange(2, 0, 24, 8),),
        *(("TENSOR_CORE",), (), 1 << 20, 4096),
        build_seconds=0.01,
        measurement=usual,
        error=1e-4,
        repeats=True,
    )
    engines = (
        ran,
        dataclasses.replace(ran, tag="ConvFwd_eng2", measurement=fast, repeats=False),
        dataclasses.replace(ran, tag="ConvFwd_eng3", error=1e-2),
        EngineResult("ConvFwd_eng4", (("index", 4),), refused="<b>not supported</b>"),
    )
    found = PassEngines("fprop", "Cudnn", usual, "ConvFwd_eng1_k2=8", "", 1e-4, engines)
    return EngineTable(call, "cuda:0", (found,), {})


def test_a_table_shows_the_fastest_first_and_pytorchs_choice(tmp_path: Any) -> None:
    engines = make_table()
    assert next(each.tag for each in engines.passes[0].timed) == "ConvFwd_eng2"
    details = flat(engines)
    assert "fprop 3 of 4 engines run" in details
    assert "ConvFwd_eng1_k2=8 (PyTorch's) 20.00 µs" in details
    assert "2.00× 1 MiB 1.0e-04 NO instant 0, a 0" in details
    assert "less exact than 1.1× PyTorch's error, 1.0e-04: ConvFwd_eng3" in details
    assert "k2 0 to 24 in steps of 8" in details
    assert "ConvFwd_eng4 <b>not supported</b>" in details
    assert "not supported" not in str(engines)
    assert "&lt;b&gt;not supported" in engines._repr_html_()
    engines.save(tmp_path / "engines.json")
    assert convtime.load(tmp_path / "engines.json") == engines
    figure = engines.plot()
    drawn = table(figure, "engine")
    columns = (drawn[name] for name in ("engine", "series", "time", "workspace"))
    assert sorted(zip(*columns, strict=True)) == [
        ("ConvFwd_eng1_k2=8", "PyTorch's choice", 20.0, 1.0),
        ("ConvFwd_eng2", "other engines", 10.0, 1.0),
        ("ConvFwd_eng3", "other engines", 20.0, 1.0),
    ]
    check_drawn(figure)


def test_a_cpu_has_no_engines(capsys: pytest.CaptureFixture[str]) -> None:
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with pytest.raises(ValueError, match="needs tensors on a GPU, where cuDNN runs, got .* on cpu"):
        convtime.conv.engines(F.conv2d, x, w)
    with pytest.raises(TypeError, match="engines takes conv1d, .*; got relu"):
        convtime.conv.engines(torch.relu, x)
    assert main(["engines", "conv2d:n2c8h9w9k8r3s3", "--device", "cpu"]) == BAD_INPUT
    assert "engines needs a GPU, where cuDNN runs, got device cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "dtype", "layout"),
    [("", "bfloat16", "nhwc"), (":float16", "float16", "nhwc"), (":nchw", "bfloat16", "nchw")],
)
def test_a_problems_form_comes_before_that_of_the_options(
    monkeypatch: pytest.MonkeyPatch, form: str, dtype: str, layout: str
) -> None:
    asked: list[Any] = []

    def described(*given: Any) -> types.SimpleNamespace:
        asked.extend(given)
        return types.SimpleNamespace(tensors=lambda *_, **__: None)

    room = "convtime.cli.engines."
    monkeypatch.setattr(f"{room}resolve_device", torch.device)
    monkeypatch.setattr(f"{room}call_of", described)
    monkeypatch.setattr(f"{room}engines_of", lambda *_: make_table())
    options = ["--dtype", "bfloat16", "--layout", "nhwc", "--device", "cuda:0"]
    assert main(["engines", f"conv2d:n2c8h9w9k8r3s3{form}", *options]) == DONE
    assert asked[1:] == [dtype, layout, torch.device("cuda:0")]


def test_an_engine_is_built_run_and_judged_unless_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a stand-in for cuDNN: engine 2 gives another result each time, and engine 3 fails."""
    result, now, numbers = torch.ones(4), itertools.count(7.0, 0.25), itertools.count(2.0)

    def build(tag: str) -> tuple[int, Any]:
        if tag == "eng3":
            raise RuntimeError("no memory\nfor it")
        return 4096, lambda: result.fill_(next(numbers) if tag == "eng2" else 1.0)

    def listed(tag: str, unsupported: str = "", excluded: str = "") -> dict[str, Any]:
        refused = {"unsupported": unsupported, "excluded": excluded}
        return {"tag": tag, "places": [("a", 0)], "knob_ranges": [], **refused}

    table = [listed(f"eng{each}") for each in (1, 2, 3)]
    table += [listed("eng4", unsupported="why\nmore"), listed("eng5", excluded="by TF32")]
    stand_in = types.SimpleNamespace(engines=lambda: table, build=build, result=result)
    monkeypatch.setattr(running, "prepare_pass", lambda *_: stand_in)
    monkeypatch.setattr(running, "time", types.SimpleNamespace(perf_counter=lambda: next(now)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    unused: Any = None
    exact = torch.ones(4, dtype=torch.float64)
    first, second, *refused = running._run_engines(
        unused, "fprop", unused, exact, lambda _: make(), progress=False
    )
    ran: dict[str, Any] = {"workspace_bytes": 4096, "build_seconds": 0.25, "measurement": make()}
    assert first == EngineResult("eng1", (("a", 0),), **ran, error=0.0, repeats=True)
    assert second == EngineResult("eng2", (("a", 0),), **ran, error=1.0, repeats=False)
    assert refused == [
        EngineResult(f"eng{3 + place}", (("a", 0),), refused=why)
        for place, why in enumerate(("RuntimeError: no memory", "why", "by TF32"))
    ]


@pytest.mark.cuda
def test_the_command_writes_all_forms(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    saved, plot = tmp_path / "engines.json", tmp_path / "plot.json"
    line = "conv2d:n2c8h9w9k8r3s3:float16"
    assert main(["engines", line, "-v", "--json", str(saved), "--plot", str(plot)]) == DONE
    assert "PyTorch's plan is ConvFwd" in capsys.readouterr().out
    assert isinstance(convtime.load(saved), EngineTable)
    assert "ConvFwd" in plot.read_text()


CASES: dict[str, Any] = {
    "conv1d": (F.conv1d, (4, 16, 40), (24, 16, 5), {"stride": 2, "padding": 1}),
    "conv2d": (F.conv2d, (4, 32, 14, 14), (48, 32, 3, 3), {"padding": 1}),
    "conv3d": (F.conv3d, (2, 8, 6, 6, 6), (16, 8, 3, 3, 3), {}),
    "conv_transpose2d": (F.conv_transpose2d, (4, 32, 7, 7), (32, 16, 4, 4), {"stride": 2}),
}


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("conv2d", torch.float16),
        *(
            pytest.param(case, dtype, marks=pytest.mark.thorough)
            for case in CASES
            for dtype in (torch.float16, torch.float32)
            if (case, dtype) != ("conv2d", torch.float16)
        ),
    ],
)
def test_engines_compute_the_pass_and_pytorchs_is_among_them(case: str, dtype: torch.dtype) -> None:
    function, shape, weight, numbers = CASES[case]
    x = torch.randn(shape, device="cuda", dtype=dtype)
    w = torch.randn(weight, device="cuda", dtype=dtype) / 8
    before = convtime.conv.plan_cache()
    table = convtime.conv.engines(function, x, w, kwargs=numbers, backward=True, progress=False)
    assert convtime.conv.plan_cache() == before
    assert [found.name for found in table.passes] == ["fprop", "dgrad", "wgrad"]
    for found in table.passes:
        assert found.backend in ("Cudnn", "CudnnTranspose")
        (theirs,) = (each for each in found.timed if each.tag == found.pytorch_tag)
        assert found.pytorch_error is not None, found.unknown
        assert found.pytorch_error < 1e-2
        # Some engines add up in another order each time.
        assert theirs.error == pytest.approx(found.pytorch_error, rel=0.1)
        for engine in found.timed:
            # cuDNN has engines whose results are wrong, and differ each time: the table says so.
            assert engine.error is not None
            assert engine.error < 5e-2 or not engine.repeats, engine
            assert engine.build_seconds is not None
            assert engine.build_seconds > 0
            assert engine.measurement is not None
            assert engine.measurement.median > 0
        places = [place for engine in found.engines for place in engine.places]
        assert len(set(places)) == len(places)
        assert {"instant", "index"} <= {list_name for list_name, _ in places}
        for engine in found.engines:
            assert bool(engine.refused) == (engine.measurement is None)
        assert len({engine.tag for engine in found.engines}) == len(found.engines)


@pytest.mark.cuda
def test_excluded_engines_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 32, 14, 14, device="cuda")
    w = torch.randn(48, 32, 3, 3, device="cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    (found,) = convtime.conv.engines(F.conv2d, x, w, progress=False).passes
    excluded = [each for each in found.engines if "TF32" in each.refused]
    assert excluded
    assert all("TENSOR_CORE" in each.numerical_notes for each in excluded)
    assert all("TENSOR_CORE" not in each.numerical_notes for each in found.timed)


@pytest.mark.cuda
def test_a_bad_tag_is_one_sentence() -> None:
    x = torch.randn(4, 32, 14, 14, device="cuda")
    w = torch.randn(48, 32, 3, 3, device="cuda")
    prepared = convtime._C.EnginePass(
        x, w, None, False, (1, 1), (0, 0), (1, 1), (0, 0), 1, False
    )  # fmt: skip
    for tag, error in (("nonsense", "tag"), ("eng9999", "cuDNN cannot run this convolution")):
        with pytest.raises(RuntimeError, match=error):
            prepared.build(tag)
