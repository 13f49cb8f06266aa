"""`convtime upgrade`: two interpreters on one device, layer by layer."""

import dataclasses
import hashlib
import json
import re
import stat
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from convtime import cli, load
from convtime.cli import upgrade as cli_upgrade
from convtime.cli.exit_codes import INTERRUPTED
from convtime.core.errors import InputError
from convtime.exchange.unknown import of_samples
from convtime.regression.attribution import Attribution
from convtime.regression.changes import Change
from convtime.timing.measurement import Measurement
from convtime.upgrading import probe as probing
from convtime.upgrading import upgrade as upgrading
from convtime.upgrading import upgrade_tests
from convtime.upgrading.causes import PassFacts, cause_of, difference_of
from convtime.upgrading.confirming import confirmed, judged
from convtime.upgrading.probe import (
    Blank,
    Layer,
    Probe,
    UnusableError,
    _answer,
    fill_parameters,
    fingerprint,
)
from convtime.upgrading.result import LayerChange, Upgrade
from convtime.upgrading.workers import KEPT_MEMORY, FailedError, Side
from tests.helpers.waiting import wait_until

PYTHON = sys.executable
FACTS = PassFacts(
    module="Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))",
    dtype="float32",
    sizes="2×3×8×8",
    layout="contiguous",
    backend="Mkldnn",
    plan="",
    kernels=("aten::mkldnn_convolution",),
    bits="0123",
    error=1e-7,
    memory_bytes=None,
    first_call_seconds=0.01,
)

SETTINGS = {"torch": "2.11.0", "threads": "2", "flag cudnn.allow_tf32": "True"}
MODEL = """
    import os
    import sys
    import time

    import torch

    PLANTED = os.environ.get("PLANTED", "").split(",")


    class Sleepy(torch.nn.Conv2d):
        def forward(self, x):
            time.sleep(0.01 if "sleep" in PLANTED else 0)
            return super().forward(x)


    class Copying(torch.nn.Module):
        def forward(self, x):
            return x.clone().relu() if "copy" in PLANTED else x.relu()


    def model():
        assert not sys.stdin.read()  # the questions are not in it
        if "crash" in PLANTED:
            os.abort()
        if "threads" in PLANTED:
            torch.set_num_threads(torch.get_num_threads() + 1)
        if "flag" in PLANTED:
            torch.backends.mkldnn.set_flags(False)
        padding = 2 if "padding" in PLANTED else 1
        found = torch.nn.Sequential(
            Sleepy(3, 8, 3, padding=1),
            Copying(),
            torch.nn.Conv2d(8, 8, 3, padding=1),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(8, 8, 3, padding=padding),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 2),
            torch.nn.Dropout(),
        )
        if "layout" in PLANTED:
            found[2].to(memory_format=torch.channels_last)
        if "dtype" in PLANTED:
            found[7].double()
            found[6] = Widened()
        return found


    class Widened(torch.nn.Flatten):
        def forward(self, x):
            return super().forward(x).double()


    def broken():
        raise RuntimeError("no weights\\nin this folder")


    def needs_an_argument(depth):
        return torch.nn.Identity()


    def crashing_layer():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), Crashing(), torch.nn.ReLU())


    class Crashing(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Crashing.calls += 1
            # The first call finds the layers; the second and third are of the whole step.
            if "crash-layer" in PLANTED and Crashing.calls > 3 and torch.is_grad_enabled() is False:
                os.abort()
            return x * 2
"""
TESTS = """
    import os
    import time

    import pytest
    import torch

    PLANTED = os.environ.get("PLANTED", "")


    @pytest.fixture(scope="module")
    def shared():
        made = []
        yield made
        with open("shared.txt", "a") as file:
            print(*made, file=file)


    def test_first(shared, time_op):
        shared.append("first")
        print("not an answer")
        time_op(time.sleep, 0.002 if PLANTED == "sleep" else 0.001, device="cpu")


    def test_second(shared, compare):
        shared.append("second")
        ones = torch.ones(10)
        compare({"a": lambda: ones + 1, "b": lambda: ones + (PLANTED != "sleep")}, device="cpu")


    @pytest.mark.parametrize("size", [10])
    def test_that_fails(size, time_op):
        assert PLANTED != "sleep", "in the new one"
        time_op(lambda: torch.ones(size))


    @pytest.mark.skip(reason="for later")
    def test_that_is_skipped(): ...


    def test_without_time(): ...


    if not PLANTED:
        def test_removed(time_op):
            time_op(lambda: torch.ones(10))
"""
QUICK = ("--device", "cpu", "--budget", "0.01")


@pytest.fixture
def folder(tmp_path, monkeypatch, warm_python):
    """A working directory with models that an environment variable changes."""
    (tmp_path / "planted_models.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "test_planted.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setitem(upgrading._BURST_SECONDS, "cpu", 5e-4)  # what is planted is large
    return tmp_path


def interpreter(folder: Path, planted: str) -> str:
    """Return an interpreter whose models are changed."""
    path = folder / f"python-{planted}"
    # A script can print lines of its own.
    start = f'PLANTED={planted} exec "{sys.executable}" "$@"'
    path.write_text(f"#!/bin/sh\necho loading an environment\n{start}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def upgraded(folder: Path, planted: str, *options: str, model: str = "model") -> Upgrade:
    """Compare this interpreter with one whose model is changed."""
    file = folder / "upgrade.json"
    code = cli.main(
        [
            *("upgrade", "--old", sys.executable, "--new", interpreter(folder, planted)),
            *(f"planted_models:{model}", "--input", "2,3,16,16", *QUICK, "--json", str(file)),
            *options,  # the last one counts
        ]
    )
    assert code == 0
    found = load(file)
    assert isinstance(found, Upgrade)
    return found


@pytest.mark.parametrize(
    ("changed", "settings", "cause"),
    [
        ({"dtype": "float16", "kernels": ("other",)}, {}, "dtype"),
        ({"module": "Wrapped()", "kernels": ("other",)}, {}, "module"),
        ({"layout": "channels_last", "backend": "other"}, {}, "layout"),
        ({"bits": "4567"}, {"flag cudnn.allow_tf32": "False"}, "flag"),
        ({"backend": "Slow2d"}, {"flag cudnn.allow_tf32": "False"}, "flag"),
        ({}, {"flag cudnn.allow_tf32": "False"}, "unknown"),
        ({"backend": "Slow2d", "kernels": ("other",)}, {"torch": "2.15.0"}, "backend"),
        ({"plan": "eng2_k1=0", "kernels": ("other",)}, {}, "plan"),
        ({"kernels": ("aten::mkldnn_convolution", "aten::clone")}, {}, "kernels"),
        ({}, {"threads": "1"}, "threads"),
        ({}, {"torch": "2.15.0"}, "version"),
        ({}, {}, "unknown"),
        ({"bits": "4567"}, {}, "unknown"),
    ],
)
def test_cause_is_the_earliest_fact_that_differs(changed, settings, cause):
    found = cause_of(
        FACTS, dataclasses.replace(FACTS, **changed), (SETTINGS, SETTINGS | settings), None
    )
    assert found.cause == cause
    for value in settings.values():
        assert cause == "unknown" or value in found.evidence or cause == "backend"


def test_clock_of_the_gates_attribution_is_a_cause_only_of_the_same_work():
    clock = Attribution("hardware or clocks", "the clock, 1980 → 1410 MHz")
    assert cause_of(FACTS, FACTS, (SETTINGS, SETTINGS), clock).cause == "clock"
    slower = dataclasses.replace(FACTS, backend="Slow2d")
    assert cause_of(FACTS, slower, (SETTINGS, SETTINGS), clock).cause == "backend"


def test_commits_that_no_interpreter_has_are_not_named():
    code = Attribution("code", "no recorded property differs, and the commits are unknown")
    assert str(cause_of(FACTS, FACTS, (SETTINGS, SETTINGS), code)) == (
        "unknown: no recorded fact differs"
    )


def test_flag_that_one_version_lacks_is_no_difference():
    known, lacks = ({**SETTINGS, "flag new": value} for value in ("True", "unknown"))
    other = dataclasses.replace(FACTS, backend="Slow2d")
    assert cause_of(FACTS, other, (lacks, known), None).cause == "backend"


def test_results_differ_only_if_both_repeat():
    other = dataclasses.replace(FACTS, bits="4567", error=3e-4)
    assert "1e-07 → 0.0003" in difference_of(FACTS, other)
    assert not difference_of(FACTS, FACTS)
    assert not difference_of(FACTS, dataclasses.replace(other, bits=""))


def example() -> Upgrade:
    change = Change("conv|1 forward", "slower", 1e-3, 2e-3, reproducer="convtime upgrade …")
    slower = LayerChange(("conv|1", "conv2"), "forward", change, 2e-3, FACTS, FACTS)
    same = LayerChange(
        ("relu",),
        "forward",
        Change("relu forward", "same", 1e-3, 1e-3),
        0.0,
        dataclasses.replace(FACTS, memory_bytes=2**20),
        dataclasses.replace(FACTS, memory_bytes=2**24),
        different="the results differ in their bits",
    )
    before, after = SETTINGS, SETTINGS | {"torch": "2.15.0"}
    return Upgrade((slower, same), before, after, margin=0.03, pairs=2)


def test_text_and_markdown_show_changes_other_results_and_settings():
    text, markdown = str(example()), example().to_markdown(["slower"])
    for shown in (text, markdown):
        assert "2.11.0 → 2.15.0" in shown
        assert "and 1 like it" in shown
        assert "+2.000 ms" in shown
        assert "relu forward: the results differ in their bits" in shown
        assert "not compared" not in shown
    assert "conv\\|1" in markdown
    assert markdown.startswith("**failed: conv\\|1 forward (slower)**")
    assert "→ 16 MiB" in example().details()


def test_findings_are_verdicts_and_other_bits():
    assert example().findings == (
        ("conv|1 forward", "slower"),
        ("relu forward", "same"),
        ("relu forward", "different"),
    )
    assert example()["relu forward"].which == "forward"
    with pytest.raises(KeyError, match="was not timed"):
        _ = example()["relu backward"]


def test_step_ratio_is_that_of_the_forward_pass():
    slower = dataclasses.replace(example().layers[0], which="backward")
    assert dataclasses.replace(example(), step=(slower,)).step_ratio is None


def test_nothing_compared_is_an_error(monkeypatch, capsys):
    failed = dataclasses.replace(example(), layers=(), failures=("0 forward: out of memory",))
    monkeypatch.setattr(cli_upgrade, "upgrade", lambda *_, **__: failed)
    command = ["upgrade", "--old", PYTHON, "--new", PYTHON, "conv2d:n1c1h4w4k1r1s1", *QUICK]
    assert cli.main(command) == 2
    assert "nothing was compared: 0 forward: out of memory" in capsys.readouterr().err


def pair_of(speed: float, ratio: float) -> dict[str, tuple[Measurement, Measurement]]:
    """Times of one pair of processes, on a machine of some speed."""
    noise = [1 + 0.002 * (index % 5 - 2) for index in range(40)]
    measured = (
        of_samples("0", [factor * speed * each for each in noise], "a test", {}, device="cpu")
        for factor in (1e-3, 1e-3 * ratio)
    )
    old, new = measured
    return {"0": (old, new)}


def test_findings_are_confirmed_from_the_ratios_within_each_pair():
    speeds = (1.0, 1.3, 0.8)
    (change,) = judged([pair_of(speed, 1.05) for speed in speeds], 0.01).changes
    assert change.verdict == "slower"
    assert change.ratio.value == pytest.approx(1.05)
    assert change.after == pytest.approx(1.05 * change.before)  # not those of the first pair alone
    # The pairs disagree, even if all but one agree.
    for ratios in ((0.9, 1.05, 1.2), (1.10, 1.11, 1.00), (1.0, 1.11, 1.10, 1.11)):
        (change,) = judged([pair_of(1.0, ratio) for ratio in ratios], 0.01).changes
        assert change.verdict == "uncertain"
    asked = []

    def again(names):
        asked.append(names)
        yield from (pair_of(1.0, ratio) for ratio in (1.0, 1.001, 0.999, 1.0))

    found = confirmed(pair_of(1.0, 1.05), again, 0.02, 4)
    assert asked == [{"0"}]
    assert found.pairs == 4
    assert found.changes.changes[0].verdict == "same"
    assert "at first slower" in found.changes.changes[0].sentence
    assert confirmed(pair_of(1.0, 1.05), lambda _: iter([{}]), 0.02, 1).missing == (
        "whether 0 repeats: it gave no time again",
    )

    def interrupted(_):
        yield pair_of(1.0, 1.04)
        raise KeyboardInterrupt

    kept = confirmed(pair_of(1.0, 1.05), interrupted, 0.02, 3)
    assert kept.pairs == 1
    assert kept.interrupted
    assert kept.changes.changes[0].ratio.value == pytest.approx(1.04)
    assert kept.missing == ("whether the findings repeat: it was interrupted",)


def test_slow_layer_is_found_where_it_is(folder):
    options = ("--layer", "0", "--layer", "2", "--pairs", "1", "--markdown", "found.md")
    found = upgraded(folder, "sleep", *options)
    assert found["0 forward"].change.verdict == "slower"
    assert found["0 forward"].cause.cause == "unknown"
    assert found.layers[0].title == "0 forward"  # it costs the most
    assert found.layers[0].cost_seconds > 0.008
    assert not found["0 forward"].different
    assert "cause: unknown" in Path("found.md").read_text()
    again = "--device cpu planted_models:model --input 2,3,16,16 --layer 0"
    assert found["0 forward"].change.reproducer.endswith(again)
    assert "--input 2,3,16,16 --layer 0" in Path("found.md").read_text()


@pytest.mark.parametrize(
    "planted",
    [
        {"copy": "1 forward", "layout": "2 backward", "padding": "4 forward", "dtype": "7 forward"},
        {"flag": "2 forward"},
        {"threads": "2 forward"},
    ],
)
def test_planted_changes_have_their_cause_at_their_layer(folder, planted):
    found = upgraded(folder, ",".join(planted), "--pairs", "0")
    settings = (found.before, found.after)
    expected = {"copy": "kernels", "padding": "module"}
    for cause, title in planted.items():
        one = found[title]
        assert cause_of(one.before, one.after, settings, None).cause == expected.get(cause, cause)
    # The input's layer is unchanged, except by settings of the whole process.
    first = found["0 forward"]
    of_process = {"flag", "threads"}.intersection(planted)
    assert cause_of(first.before, first.after, settings, None).cause == "".join(
        of_process or ["unknown"]
    )


def test_unchanged_model_has_equal_facts(folder):
    found = upgraded(folder, "", "--pairs", "0")
    assert [each.which for each in found.step] == ["forward", "backward"]
    assert not found.failures
    assert found.before == found.after
    for each in (*found.step, *found.layers):
        assert not each.different
        assert each.before.kernels == each.after.kernels
        assert each.before.error is None or each.before.error < 1e-5
    assert found["8 forward"].before.bits == ""  # dropout does not repeat
    first_calls = [each.before.first_call_seconds for each in (*found.step, *found.layers)]
    assert first_calls.count(None) == 1  # of the step's backward pass, after those of the layers
    assert all(each is None or each > 0 for each in first_calls)
    assert found["4 forward"].before.backend == "Mkldnn"
    assert "aten::addmm" in found["7 forward"].before.kernels
    assert "aten::sum" in found["5 forward"].before.kernels


MODES = """
    import dataclasses
    import types

    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint


    class Modes(nn.Module):
        def __init__(self):
            super().__init__()
            self.cast = nn.Conv2d(3, 8, 3, padding=1)
            self.frozen = nn.Conv2d(8, 8, 3, padding=1)
            self.same = nn.Conv2d(8, 8, 3, padding=1)
            self.last = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.cast(x)
            with torch.no_grad():
                frozen = self.frozen(x.float())
            return self.last(self.same(frozen))


    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.few, self.many, self.again = (nn.Embedding(50, 8) for _ in range(3))
            self.trained, self.fixed = nn.BatchNorm1d(8), nn.BatchNorm1d(8).eval()
            self.short, self.long = (nn.ConvTranspose1d(8, 8, 3, stride=2) for _ in range(2))
            self.sparse = nn.Embedding(50, 8, sparse=True)
            self.strict, self.unbatched = Strict(), nn.Conv1d(8, 8, 3)

        def train(self, mode=True):
            super().train(mode)
            self.fixed.eval()
            return self

        def forward(self, x):
            few = torch.arange(4)
            x = self.few(few) + self.again(few) + self.many(torch.arange(40)).sum() + x.sum()
            x = self.fixed(self.trained(x + self.sparse(few)))
            x = self.strict(x).t()[None]
            x = self.short(x).sum() + self.long(x, output_size=[10])
            return self.unbatched(x[0])


    class Strict(nn.Module):
        def forward(self, x):
            assert x.dtype == torch.float32
            return x * 2


    @dataclasses.dataclass(frozen=True)
    class Result:
        y: torch.Tensor


    class Attributes(dict):
        y = property(lambda self: self["y"])


    class Containers(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))
            self.wraps, self.unwraps = Wraps(self.weight), Unwraps()
            self.hides, self.packed = Hides(self.weight), nn.GRU(4, 4, batch_first=True)

        def forward(self, x):
            x = self.unwraps(self.wraps(x), Attributes(y=x))
            self.hides(x)
            packed = nn.utils.rnn.pack_padded_sequence(x[None], [2], batch_first=True)
            return Result(self.packed(packed)[0].data)


    class Wraps(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return Result(x @ self.weight)


    class Unwraps(nn.Module):
        def forward(self, result, attributes):
            return result.y.relu() + attributes.y


    class Hides(Wraps):
        def forward(self, x):
            return types.SimpleNamespace(y=x @ self.weight)


    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(16, 2)
            self.inside = nn.Sequential(nn.Linear(8, 16), nn.Tanh())

        def forward(self, x):
            return self.last(checkpoint(self.inside, self.first(x), use_reentrant=True))


    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.hooked, self.same, self.patched = (nn.Linear(4, 4) for _ in range(3))
            self.hooked.register_forward_pre_hook(lambda _, args: (args[0].flatten(0, -2)[:3],))
            self.patched.forward = types.MethodType(lambda _, x: x.sin(), self.patched)
            self.inverts, self.turns, self.squares = Inverts(), Turns(), Squares()

        def forward(self, x):
            x = self.patched(self.same(self.hooked(x)))
            x = self.inverts(x, torch.zeros(x.shape, dtype=torch.bool))
            return self.squares(self.turns(x))


    def lazy_and_scripted():
        return nn.Sequential(nn.LazyLinear(4), torch.jit.script(nn.ReLU()), nn.Tanh())


    instance = nn.Linear(2, 2)


    class Inverts(nn.Module):
        def forward(self, x, mask):
            return torch.where(mask.logical_not_(), x, 0.0)


    class Turns(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).conj()


    class Squares(nn.Module):
        def forward(self, z):
            return (z * z.conj()).real
"""


def loaded_probe(folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, *shape: int) -> Probe:
    (folder / "modes.py").write_text(textwrap.dedent(MODES))
    monkeypatch.syspath_prepend(folder)
    probe = Probe("cpu")
    probe.answer({"do": "load_model", "model": f"modes:{model}", "shape": [*shape]})
    return probe


def test_layers_run_in_the_modes_in_which_the_model_calls_them(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Modes", 2, 3, 16, 16)
    described = {name: layer.described() for name, layer in probe.layers.items()}
    assert described["cast"]["dtype"] == "float32, autocast to bfloat16"
    kernels = probe.answer({"do": "facts", "layer": "cast", "which": "forward"})["kernels"]
    assert any("aten::copy_" in each or "aten::_to_copy" in each for each in kernels)
    facts = probe.answer({"do": "facts", "layer": "cast", "which": "backward"})
    assert 1e-4 < facts["error"] < 0.1  # compared with float64, which is not cast
    with pytest.raises(UnusableError, match="it has no gradient"):
        probe.answer({"do": "facts", "layer": "frozen", "which": "backward"})
    keys = {name: each["key"] for name, each in described.items()}
    assert keys["same"] != keys["last"]  # whose input has a gradient
    assert keys["frozen"] != keys["same"]


def test_only_identical_calls_are_timed_once_and_facts_do_not_prevent_times(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Calls", 2, 3)
    described = {name: layer.described() for name, layer in probe.layers.items()}
    keys = {name: each["key"] for name, each in described.items()}
    assert keys["few"] == keys["again"]
    different = ("few", "many", "trained", "fixed", "short", "long")
    assert len({keys[name] for name in different}) == len(different)
    assert described["many"]["sizes"] == "40"
    for layer, which in (("strict", "forward"), ("sparse", "backward"), ("unbatched", "forward")):
        question = {"layer": layer, "which": which}
        facts = probe.answer({"do": "facts", **question})
        assert (facts["error"] is None) == (layer in ("strict", "sparse")), layer
        assert (facts["bits"] == "") == (layer == "sparse"), layer
        assert probe.answer({"do": "time", **question, "calls": 1})["seconds"] > 0


def facts_of(probe: Probe, layer: str, which: str) -> dict[str, Any]:
    return probe.answer({"do": "facts", "layer": layer, "which": which})


def test_tensors_in_dataclasses_and_other_containers_are_found(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Containers", 2, 4)
    for layer in ("whole step", "wraps", "unwraps", "packed"):
        for which in ("forward", "backward"):
            facts = facts_of(probe, layer, which)
            assert facts["bits"]
            assert layer == "whole step" or facts["error"] < 1e-5
    assert probe.layers["unwraps"].described()["sizes"] == "2×4, 2×4"
    assert facts_of(probe, "hides", "forward")["bits"] == ""
    with pytest.raises(UnusableError, match="no tensors that convtime knows"):
        facts_of(probe, "hides", "backward")


def test_reentrant_checkpoints_have_gradients(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Checkpointed", 2, 4)
    kernels = facts_of(probe, "whole step", "backward")["kernels"]
    assert "aten::tanh_backward" in kernels
    assert "5× aten::mm" in kernels  # of all three layers
    assert all(each.grad is None for each in probe.layers["whole step"].module.parameters())
    assert "2× aten::mm" in facts_of(probe, "inside.0", "backward")["kernels"]
    assert "aten::tanh_backward" in facts_of(probe, "inside.1", "backward")["kernels"]


def test_calls_are_repeated_as_the_model_makes_them(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Repeated", 2, 2, 4)
    described = {name: layer.described() for name, layer in probe.layers.items()}
    assert described["hooked"]["sizes"] == "2×2×4"  # which the user's hook replaces in each call
    assert described["same"]["sizes"] == described["patched"]["sizes"] == "3×4"
    assert described["patched"]["key"] == "patched"
    assert facts_of(probe, "hooked", "forward")["error"] < 1e-5
    # A mask that a call changes in place is as before in the next one.
    assert facts_of(probe, "inverts", "forward")["error"] == 0
    probe.answer({"do": "time", "layer": "inverts", "which": "forward", "calls": 1})
    assert facts_of(probe, "inverts", "backward")["bits"]
    # Complex numbers have values of their own, not those of the layer before.
    assert 0 < facts_of(probe, "turns", "forward")["error"] < 1e-5
    for which in ("forward", "backward"):
        assert 0 < facts_of(probe, "squares", which)["error"] < 1e-5


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:")
def test_lazy_modules_are_initialized_and_scripted_ones_are_named(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "lazy_and_scripted", 2, 3)
    assert [*probe.layers] == ["whole step", "0", "2"]
    assert facts_of(probe, "0", "forward")["error"] < 1e-5
    loaded = probe._loaded()
    assert loaded["scripted"] == ["1"]
    sides: Any = [SimpleNamespace(loaded=loaded)] * 2
    said = " ".join(upgrading._missing(sides, on_gpu=False))
    assert "scripted modules, which have no hooks (1, e.g. 1)" in said
    with pytest.raises(UnusableError, match="modes:instance is a model, but must be a function"):
        loaded_probe(tmp_path, monkeypatch, "instance", 2, 3)


def test_facts_of_a_call_include_indices_strides_and_the_mode(tmp_path, monkeypatch):
    probe = loaded_probe(tmp_path, monkeypatch, "Calls", 2, 3)
    described = {name: layer.described() for name, layer in probe.layers.items()}
    assert described["many"]["dtype"] == "int64, float32"
    assert described["fixed"]["module"].endswith(" in evaluation mode")
    assert upgrading._modules(described["trained"], described["fixed"]) == (
        described["trained"]["module"],
        described["fixed"]["module"],
    )
    turned = Blank.of(torch.ones(4, 3).t())
    layer = Layer("0", torch.nn.Linear(4, 2), ((turned, Blank.of(torch.ones(2).to_sparse())), {}))
    assert layer.described()["layout"] == "strides (1, 3), contiguous"


def test_a_process_whose_gpu_refuses_all_work_is_broken(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("device-side assert triggered")

    probe = Probe("cpu")
    assert not _answer(probe, {"do": "no such question"})["broken"]
    monkeypatch.setattr(probe, "_synchronize", refuse)
    assert _answer(probe, {"do": "no such question"})["broken"]


def test_a_test_that_breaks_the_gpu_fails_alone(folder):
    # In both interpreters: the first test leaves a process whose GPU refuses all work.
    (folder / "test_two.py").write_text(
        "import gc, time\n\n"
        "BROKEN = []\n\n\n"
        "def refuse():\n    raise RuntimeError('device-side assert triggered')\n\n\n"
        "def test_a():\n"
        "    BROKEN.append(1)\n"
        "    for each in gc.get_objects():\n"
        "        if type(each).__name__ == 'Probe':\n"
        "            each._synchronize = refuse\n"
        "    refuse()\n\n\n"
        "def test_b(time_op):\n"
        "    assert not BROKEN\n"
        "    time_op(time.sleep, 1e-3, device='cpu')\n"
    )
    file = folder / "upgrade.json"
    command = ["upgrade", "--old", sys.executable, "--new", sys.executable, "test_two.py"]
    assert cli.main([*command, "--json", str(file)]) == 0
    found = load(file)
    assert isinstance(found, Upgrade)
    assert [each.title for each in found.layers] == ["test_two.py::test_b"]
    assert len(found.failures) == 1
    assert "device-side assert triggered" in found.failures[0]


def test_exact_results_of_zero_have_no_error():
    probe = Probe("cpu")
    layer = Layer("0", torch.nn.Threshold(9.0, 0.0), ((Blank.of(torch.ones(2, 3)),), {}))
    assert probe._error(layer, "forward") is None
    layer.module = torch.nn.Threshold(0.0, 0.0)
    assert probe._error(layer, "forward") == 0


def test_conjugated_results_have_the_bits_of_equal_ones():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert fingerprint([numbers.conj()]) == fingerprint([numbers.conj().resolve_conj()])
    assert fingerprint([numbers.conj().imag]) == fingerprint([-numbers.imag])
    assert fingerprint([]) == ""


def test_values_of_parameters_depend_on_their_names_only():
    def filled(*extra: torch.nn.Module) -> dict[str, torch.Tensor]:
        torch.manual_seed(len(extra))
        parts = {"rnn": torch.nn.LSTM(3, 4), "norm": torch.nn.LayerNorm(4)}
        parts |= {"extra": torch.nn.Sequential(*extra), "last": torch.nn.Linear(4, 2)}
        module = torch.nn.ModuleDict(parts)
        module.vector = torch.nn.Parameter(torch.rand(5))
        module.turned = torch.nn.Parameter(torch.rand(2, 2, dtype=torch.complex64))
        fill_parameters(module)
        return {name: each.detach() for name, each in module.named_parameters()}

    old, new = filled(), filled(torch.nn.Linear(1, 1))
    for name, each in old.items():
        assert torch.equal(each, new[name]), name
    assert (old["norm.weight"] == 1).all()
    assert old["turned"].imag.abs().min() > 0


def test_modules_are_compared_by_what_both_versions_of_torch_know():
    def described(module: str, **attributes: str) -> dict[str, Any]:
        return {"module": module, "attributes": attributes}

    old = described("BatchNorm2d(3, eps=1e-05)", type="BatchNorm2d", eps="1e-05")
    new = described("BatchNorm2d(3, bias=True)", type="BatchNorm2d", eps="1e-05", more="1")
    assert upgrading._modules(old, new) == (old["module"], old["module"])
    new["attributes"]["eps"] = "0.1"
    assert upgrading._modules(old, new) == (old["module"], new["module"])
    assert upgrading._modules(described("Mine(1)"), described("Mine(2)")) == ("Mine(1)", "Mine(2)")
    assert upgrading._modules(described("Mine(1)"), None) == ("Mine(1)", "")

    class Norm(torch.nn.LayerNorm):
        shown = ""

        def extra_repr(self) -> str:  # as that of another torch
            return self.shown

    norms = Norm(4), Norm(4), Norm(4, eps=0.1)
    norms[1].shown = norms[2].shown = "bias=True"
    old, new, other = (Layer("0", norm, ((), {})).described() for norm in norms)
    assert upgrading._modules(old, new) == (old["module"], old["module"])
    assert upgrading._modules(old, other) == (old["module"], other["module"])

    class Act(torch.nn.Module):
        def extra_repr(self) -> str:
            return repr(torch.relu)

    assert " at 0x" in repr(Act())
    assert "0x" not in Layer("act", Act(), ((), {})).described()["module"]


class FakeSide:
    """An interpreter with one layer, whose calls take some seconds or fail."""

    environment: ClassVar = {"gpu_uuid": None, "gpu": None, "torch": "2"}

    def __init__(self, which: str, seconds: float | None) -> None:
        self.which = which
        self._seconds = seconds
        layer = {"name": "0", "key": "0", "module": "", "dtype": "float32", "sizes": ""}
        self.loaded = {"layers": [{**layer, "layout": "", "attributes": {}}], "scripted": []}

    def ask(self, do: str, which: str, **_: Any) -> dict[str, Any]:
        if which == "backward":
            raise FailedError("it has no gradient")
        if do == "facts":
            named = {each.name: getattr(FACTS, each.name) for each in dataclasses.fields(FACTS)}
            return {name: named[name] for name in FACTS_OF_A_PASS}
        if self._seconds is None:
            raise FailedError("out of memory")
        return {"seconds": self._seconds, "clock_hz": None}

    def settings(self) -> dict[str, str]:
        return {}


FACTS_OF_A_PASS = ("first_call_seconds", "memory_bytes", "bits", "backend", "kernels", "error")


def fake_interpreters(*pairs: tuple[float | None, float | None]) -> Any:
    """The pair that times comes second; the others confirm."""

    def made(count: int, **_options: Any) -> Iterator[tuple[FakeSide, FakeSide]]:
        for _ in range(count):
            old, new = left.pop(0)
            yield FakeSide("old", old), FakeSide("new", new)

    left = [*pairs]
    return SimpleNamespace(pairs=made, command="convtime upgrade")


def test_a_failure_in_a_confirming_pair_leaves_the_first_verdict():
    pairs = (1e-3, 1e-3), (1e-3, 2e-3), (1e-3, 2e-3), (1e-3, None)
    found = upgrading.upgrade(fake_interpreters(*pairs), pairs=2, budget=0)
    (change,) = (each.change for each in found.layers)
    assert change.verdict == "slower"
    assert change.ratio.value == pytest.approx(2)
    assert found.missing[-1] == "whether 0 forward repeats: it gave no time again"


def test_a_pass_that_both_interpreters_cannot_repeat_is_no_difference_between_them():
    found = upgrading.upgrade(fake_interpreters((1e-3, 1e-3), (None, None)), budget=0)
    assert not found.layers
    assert "the old interpreter: out of memory and the new interpreter" in found.failures[0]
    found = upgrading.upgrade(fake_interpreters((1e-3, 1e-3), (None, 1e-3)), budget=0)
    assert [each.change.verdict for each in found.layers] == ["new"]


def test_what_most_layers_have_in_common_is_no_clock():
    run = {name: pair_of(1.0, 1.3)["0"] for name in "abcdef"}
    for change in judged([run], 0.01).changes:
        assert change.verdict == "slower"
        assert change.attribution.cause != "hardware or clocks"


def test_a_script_that_starts_the_interpreter_as_its_child_leaves_no_process(tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    program = tmp_path / "program.py"
    said = """print('convtime: {"pid": %d}' % os.getpid(), flush=True)"""
    program.write_text(f"import os, time\n{said}\ntime.sleep(60)\n")
    with Side("old", str(script), [str(program)], {}) as side:
        side.begin()
        child = side._receive(30)["pid"]
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.05)
    pytest.fail("the child runs on")


def program_that_prints(folder: Path, *lines: str) -> str:
    path = folder / "python"
    path.write_text("\n".join(["#!/bin/sh", *lines, "exec sleep 60\n"]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_process_that_cannot_load_or_continue_is_ended_and_other_encodings_are_read(tmp_path):
    prints = [
        *("printf '\\377\\n'", "echo 'convtime: null'", "echo 'convtime: {}'"),
        """echo 'convtime: {"unusable": "no model", "broken": true}'""",
    ]
    with Side("old", program_that_prints(tmp_path, *prints), [], {}) as side:
        with pytest.raises(InputError, match="no model"):
            side.load()
        assert side._process is None
        side.await_start()
        with pytest.raises(FailedError, match="no model"):
            side.ask("facts")
        assert side._process is None


def test_a_program_that_is_no_interpreter_is_said_to_be_none():
    with (
        Side("new", "/bin/true", [], {}) as side,
        pytest.raises(InputError, match="exit code 0; it is perhaps not a Python interpreter"),
    ):
        side.load()


def test_reason_of_a_crash_is_what_python_or_pytest_says_of_it():
    crash = b"""earlier
ERROR: cache is stale
Fatal Python error: Aborted

  File "a.py", line 1 in forward

Extension modules: numpy (total: 1)
"""
    log = b"ValueError: too small\nERROR:2026-01-01 09:00:00 1:1 a.cpp:56] failed with code 35\n"
    usage = b"ERROR: not found: test_a\n(no name)\n"
    for do, written, said in (
        ("load_model", crash, " (Fatal Python error: Aborted)"),
        ("load_model", log, " (ValueError: too small)"),
        ("load_model", usage, " ((no name))"),
        ("load_tests", usage, " (ERROR: not found: test_a (no name))"),
    ):
        with Side("old", PYTHON, [], {"do": do}) as side:
            side._errors().write_bytes(written)
            assert side._last_error() == said
            side._told_bytes = len(written)  # all of it came before the last answer
            assert side._last_error() == ""


def test_passes_without_kernels_on_both_sides_have_no_time_on_a_gpu():
    none = dataclasses.replace(FACTS, kernels=())
    sides = {"both": [FACTS, FACTS], "none": [none, none], "old": [FACTS, none]}
    passes = [upgrading._Pass((name,), "forward") for name in (*sides, "failed")]
    known = {
        f"{name} forward": upgrading._Known([*facts], ["", ""]) for name, facts in sides.items()
    }
    known["failed forward"] = upgrading._Known([none, None], ["", "it ended"])
    assert upgrading._idle(passes, known) == [passes[1]]
    # A profiler that sees no kernel at all says nothing about any pass.
    assert not upgrading._idle([passes[1]], known)


@pytest.mark.cuda
def test_on_a_gpu_plans_memory_and_clocks_are_known(folder):
    found = upgraded(folder, "padding", "--pairs", "0", "--device", "cuda")
    forward, backward = found["2 forward"].before, found["2 backward"].before
    assert forward.plan.startswith("ConvFwd_eng")
    assert [tag.partition("_")[0] for tag in backward.plan.split(", ")] == [
        *("ConvBwdData", "ConvBwdFilter")
    ]
    assert forward.backend.startswith("Cudnn")
    assert forward.memory_bytes > 0
    assert found["3 forward"].before.plan == ""
    assert not any("clock" in each for each in found.missing)
    assert any("no kernels (2, e.g. 6 forward)" in each for each in found.missing)
    assert "6 forward" not in [each.title for each in found.layers]
    assert all(each.before.first_call_seconds > 0 for each in (*found.step, *found.layers))


def test_layer_that_crashes_in_one_interpreter_is_missing_and_the_others_are_timed(folder):
    found = upgraded(folder, "crash-layer", "--pairs", "0", model="crashing_layer")
    crashed = found["1 forward"]
    assert crashed.change.verdict == "missing"
    assert "the new interpreter: it ended by signal 6" in crashed.change.sentence
    assert found["0 forward"].change.ratio is not None
    assert found["2 backward"].change.ratio is not None


def test_tests_are_compared_by_name_with_their_causes(folder, capsys):
    new = interpreter(folder, "sleep")
    command = ["upgrade", "--old", sys.executable, "--new", new, "test_planted.py"]
    wanted = ["--pairs", "1", "--json", "-", "--fail-on", "slower"]
    assert cli.main([*command, *wanted]) == 1
    found = Upgrade.from_dict(json.loads(capsys.readouterr().out))
    slower = found["test_planted.py::test_first"]
    assert slower.change.verdict == "slower"
    assert "found twice" in slower.change.sentence
    assert slower.cause.cause == "unknown"
    assert slower.before.first_call_seconds >= 0.001
    assert slower.after.first_call_seconds >= 0.002
    assert slower.change.reproducer.endswith(f"--new {new} test_planted.py::test_first")
    assert found.layers[0] == slower
    second = found["test_planted.py::test_second b"]
    assert second.change.ratio is not None
    assert "differ" in second.different
    failed = found["test_planted.py::test_that_fails[10]"].change
    assert failed.verdict == "missing"
    assert "the new interpreter: it failed (AssertionError: in the new one" in failed.sentence
    removed = found["test_planted.py::test_removed"].change
    assert "the new interpreter: it does not have this test" in removed.sentence
    assert not removed.reproducer  # which would fail
    assert failed.reproducer.endswith("test_planted.py::test_that_fails[10]'")
    (skipped,) = found.failures
    assert "test_that_is_skipped: the old interpreter: it was skipped (for later)" in skipped
    assert any("test_without_time" in each for each in found.missing)
    # Both tests of a run share the fixture of their module; only findings were confirmed. The
    # second test can be one by chance, on a machine that does something else.
    is_finding = "at first" in second.change.sentence or "twice" in second.change.sentence
    again = "first second" if is_finding else "first"
    expected = ["first second", "first second", again, again]
    if torch.cuda.is_available():  # and what changed was run once more, for cuDNN's plans
        changed = second.change.verdict in ("slower", "faster")
        expected += ["first second" if changed else "first"] * 2
    runs = Path("shared.txt").read_text().splitlines()
    assert sorted(runs) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--new", "/nowhere/python"], "--new must be a Python interpreter.*'/nowhere/python'"),
        (["--new", "{no_torch}"], "--new .*it ended with exit code 1 .*No module named 'torch'"),
        (["--new", "{crash}"], "--new .*python-crash: it ended by signal 6"),
        (["planted_models:broken"], "--old .*broken\\(\\) raised RuntimeError: no weights$"),
        (["planted_models:missing"], "--old .*has no attribute 'missing'"),
        (["planted_models:Crashing", "--input", "0,3"], "--input"),
        (["planted_models:needs_an_argument"], "--old .*missing 1 required positional argument"),
        (["planted_models"], "MODEL must look like package.module:factory"),
        (["planted_models:model", "--input", "2,5,16,16"], "called on shape \\(2, 5, 16, 16\\)"),
        (["planted_models:model", "--layer", "99"], "--layer must be one of .*got '99'"),
        (["planted_models:model", "--margin", "2"], "--margin must be a share"),
        (["planted_models:model", "--device", "meta"], "--device must be cpu, cuda or cuda:N"),
        (["conv2d:n1c1h4w4k1r1s1"], "--input requires a model"),
        (["conv2d:n1c1h4w4k1r1s1", "planted_models:model"], "MODEL must be one model"),
        (["test_planted.py", "--layer", "0"], "--layer is for models"),
        (["test_nope.py::test_x"], "^.*: test_nope.py does not exist"),
        (["test_planted.py", "nope"], "^.*: nope does not exist"),
        (
            ["test_planted.py::test_no"],
            "--old .*exit code 4 .*not found: .*test_planted.py::test_n",
        ),
        (["test_broken.py"], "--old .*cannot be collected .*No module named 'no_such_module'"),
        (["test_planted.py", "--old", "{bare}"], "--old .*: convtime is not installed there"),
    ],
)
def test_bad_input_is_one_sentence(folder, capsys, arguments, said):
    no_torch = folder / "python-no-torch"
    no_torch.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    no_torch.chmod(0o755)
    bare = folder / "python-bare"
    (folder / "bare").mkdir()
    (folder / "bare" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['pytest_convtime'] = None\n"
    )
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/bare exec "{PYTHON}" "$@"\n')
    bare.chmod(0o755)
    named = {"no_torch": no_torch, "crash": interpreter(folder, "crash"), "bare": bare}
    given = [each.format(**named) for each in arguments]
    usual = {"--old": sys.executable, "--new": sys.executable}
    tests = any(each.startswith("test_") for each in given)
    usual |= {} if tests else {"--input": "2,3,16,16"}
    for option, value in usual.items():
        given += [] if option in given else [option, value]
    if not tests and not any("planted_models" in each or "conv2d" in each for each in given):
        given.append("planted_models:model")
    assert cli.main(["upgrade", *([] if tests else QUICK), *given]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert re.search(said, error), error


def test_convolutions_in_one_line_are_compared_without_a_step(folder, capsys):
    lines = ["conv2d:n2c4h8w8k4r3s3p1:float64:nhwc:bias", "conv_transpose1d:n2c4w9k2s2stride2"]
    interpreters = ["--old", sys.executable, "--new", sys.executable]
    assert cli.main(["upgrade", *interpreters, *lines, *QUICK, "--pairs", "0", "--json", "-"]) == 0
    found = Upgrade.from_dict(json.loads(capsys.readouterr().out))
    assert not found.step
    assert {each.title for each in found.layers} == {
        f"{line} {which}" for line in lines for which in ("forward", "backward")
    }
    first = found[f"{lines[0]} forward"]
    assert (first.before.dtype, first.before.layout) == ("float64", "channels_last")
    assert first.before.error < 1e-14
    assert first.change.reproducer.endswith(f"--new {sys.executable} --device cpu {lines[0]}")


def test_an_interrupted_command_keeps_what_was_timed(folder, capsys, monkeypatch):
    lines = ["conv2d:n2c4h8w8k4r3s3p1", "conv_transpose1d:n2c4w9k2s2stride2"]
    alternating = upgrading._alternating

    def interrupted(each, *arguments):
        if each.layers == (lines[1],) and each.which == "forward":
            raise KeyboardInterrupt
        return alternating(each, *arguments)

    monkeypatch.setattr(upgrading, "_alternating", interrupted)
    command = ["upgrade", "--old", sys.executable, "--new", sys.executable, "--json", "-", *QUICK]
    assert cli.main([*command, *lines]) == INTERRUPTED
    found = Upgrade.from_dict(json.loads(capsys.readouterr().out))
    assert found.interrupted
    assert [each.title for each in sorted(found.layers, key=lambda each: each.title)] == [
        f"{lines[0]} backward",
        f"{lines[0]} forward",
    ]
    assert found.failures == (
        f"{lines[1]} forward: it was interrupted",
        f"{lines[1]} backward: it was interrupted",
    )
    assert found.pairs == 0
    assert "whether the findings repeat: it was interrupted" in found.missing
    assert cli.main([*command, lines[1]]) == INTERRUPTED  # nothing was timed


def test_interrupted_tests_keep_what_both_interpreters_timed(folder, capsys, monkeypatch):
    (folder / "test_two.py").write_text(
        "import time\n\n\n"
        "def test_a(time_op):\n    time_op(time.sleep, 1e-3, device='cpu')\n\n\n"
        "def test_b(time_op):\n    time_op(time.sleep, 1e-3, device='cpu')\n"
    )
    record_one = upgrade_tests._record_one
    stopped_at: list[tuple[str, str]] = []

    def interrupted(side, test, later, recorded):
        if (side.which, test.partition("::")[2]) in stopped_at:
            raise KeyboardInterrupt
        record_one(side, test, later, recorded)

    monkeypatch.setattr(upgrade_tests, "_record_one", interrupted)
    command = ["upgrade", "--old", sys.executable, "--new", sys.executable, "test_two.py"]
    stopped_at.append(("old", "test_b"))  # the new interpreter comes first
    assert cli.main([*command, "--json", "-"]) == INTERRUPTED
    found = Upgrade.from_dict(json.loads(capsys.readouterr().out))
    assert found.interrupted
    assert [each.title for each in found.layers] == ["test_two.py::test_a"]
    assert found.failures == ("test_two.py::test_b: it was interrupted",)
    assert found.pairs == 0
    assert "whether the findings repeat: it was interrupted" in found.missing
    stopped_at.append(("new", "test_a"))
    assert cli.main(command) == INTERRUPTED
    assert not capsys.readouterr().out  # nothing was timed


def test_a_process_waits_until_its_threads_give_up_their_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = threading.Event()

    def computes() -> None:
        while not done.is_set():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 5_000)

    busy = threading.Thread(target=computes)
    busy.start()
    try:
        wait_until(probing._another_thread_runs)
    finally:
        done.set()
        busy.join()
    wait_until(lambda: not probing._another_thread_runs())
    looks = iter([True, True, False, True])
    monkeypatch.setattr(probing, "_another_thread_runs", lambda: next(looks))
    probing.wait_until_quiet()
    assert next(looks)  # after one that saw none


def test_processes_keep_the_pages_of_freed_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEPT_MEMORY:  # as Dask sets it for the processes that it starts
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """\
            import ctypes, json, resource, sys
            c = ctypes.CDLL(None)
            c.malloc.restype = ctypes.c_void_p
            c.free.argtypes = [ctypes.c_void_p]
            c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
            def use():
                blocks = [c.malloc(1 << 20) for _ in range(4)]
                for block in blocks:
                    c.memset(block, 1, 1 << 20)
                for block in blocks:
                    c.free(block)
            for line in sys.stdin:
                use()
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                for _ in range(20):
                    use()
                used = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
                print("convtime: " + json.dumps({"faults": used}), flush=True)
            """
        ),
        encoding="utf-8",
    )
    with Side("old", sys.executable, [str(program)], {"do": "nothing"}) as side:
        side.load()
    pages_of_a_use = 4 << 8
    assert side.environment["faults"] < 5 * pages_of_a_use  # of twenty
