import hashlib
import json
import multiprocessing
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from convtime.upgrading import probe as probing
from convtime.upgrading import pytest_probe
from convtime.upgrading import upgrade as upgrading
from convtime.upgrading.probe import (
    Layer,
    Probe,
    TensorSpec,
    UnusableError,
    _answer,
    answer,
    fill_parameters,
    fingerprint,
    questions,
)
from tests.helpers.waiting import wait_until

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
    kernels = probe.answer({"do": "facts", "name": "cast", "which": "forward"})["kernels"]
    assert any("aten::copy_" in each or "aten::_to_copy" in each for each in kernels)
    facts = probe.answer({"do": "facts", "name": "cast", "which": "backward"})
    assert 1e-4 < facts["error"] < 0.1  # compared with float64, which is not cast
    with pytest.raises(UnusableError, match="it has no gradient"):
        probe.answer({"do": "facts", "name": "frozen", "which": "backward"})
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
    assert (described["many"]["sizes"], described["many"]["dtype"]) == ("40", "int64, float32")
    modules = (described["trained"]["module"], described["fixed"]["module"])
    assert modules[1].endswith(" in evaluation mode")
    assert upgrading._modules(described["trained"], described["fixed"]) == modules
    for layer, which in (("strict", "forward"), ("sparse", "backward"), ("unbatched", "forward")):
        question = {"name": layer, "which": which}
        facts = probe.answer({"do": "facts", **question})
        assert (facts["error"] is None) == (layer in ("strict", "sparse")), layer
        assert (facts["bits"] == "") == (layer == "sparse"), layer
        assert probe.answer({"do": "time", **question, "calls": 1})["seconds"] > 0


def facts_of(probe: Probe, layer: str, which: str) -> dict[str, Any]:
    return probe.answer({"do": "facts", "name": layer, "which": which})


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
    probe.answer({"do": "time", "name": "inverts", "which": "forward", "calls": 1})
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
    sides: Any = [SimpleNamespace(loaded=loaded, on_gpu=False)] * 2
    said = " ".join(upgrading._missing(sides, []))
    assert "scripted modules, which have no hooks (1, e.g. 1)" in said
    with pytest.raises(UnusableError, match="modes:instance is a model, but must be a function"):
        loaded_probe(tmp_path, monkeypatch, "instance", 2, 3)


def test_a_process_whose_gpu_refuses_all_work_is_broken(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("device-side assert triggered")

    probe = Probe("cpu")
    assert not _answer(probe, {"do": "no such question"})["broken"]
    monkeypatch.setattr(probe, "_synchronize", refuse)
    assert _answer(probe, {"do": "no such question"})["broken"]


def test_layouts_are_described_and_exact_results_of_zero_have_no_error():
    turned, sparse = TensorSpec.of(torch.ones(4, 3).t()), TensorSpec.of(torch.ones(2).to_sparse())
    layer = Layer("0", torch.nn.Linear(4, 2), ((turned, sparse), {}))
    assert layer.described()["layout"] == "strides (1, 3), contiguous"
    probe = Probe("cpu")
    layer = Layer("0", torch.nn.Threshold(9.0, 0.0), ((TensorSpec.of(torch.ones(2, 3)),), {}))
    assert probe._error(layer, "forward") is None
    layer.module = torch.nn.Threshold(0.0, 0.0)
    assert probe._error(layer, "forward") == 0


def test_conjugated_results_have_the_bits_of_equal_ones():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert fingerprint([numbers.conj()]) == fingerprint([numbers.conj().resolve_conj()])
    assert fingerprint([numbers.conj().imag]) == fingerprint([-numbers.imag])
    assert fingerprint([]) == ""


def test_of_pytest_and_convtime_the_one_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for missing in ("pytest", "convtime"):
        ours, theirs = multiprocessing.Pipe()
        for question in (b"null", b'{"paths": []}'):
            ours.send_bytes(question)
        program = {
            "questions": questions,
            "answer": answer,
            "Probe": lambda _: SimpleNamespace(environment=dict),
            "torch": torch,
        }
        installed = {"pytest", "pytest_convtime"} - {missing, f"pytest_{missing}"}
        util = SimpleNamespace(find_spec=lambda name, has=installed: name if name in has else None)
        monkeypatch.setattr(pytest_probe, "importlib", SimpleNamespace(util=util))
        monkeypatch.setattr("runpy.run_path", lambda _, found=program: found)
        assert pytest_probe.main(theirs) == 0
        environment, told = (json.loads(ours.recv_bytes()) for _ in range(2))
        assert environment == {}
        assert told["unusable"].startswith(f"{missing} is not installed there")


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
