import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from convtime import cli, load
from convtime.cli.exit_codes import INTERRUPTED
from convtime.upgrading import upgrade as upgrading
from convtime.upgrading.causes import cause_of
from convtime.upgrading.result import Upgrade

pytestmark = pytest.mark.thorough

PYTHON = sys.executable
MODEL = """
    import os
    import sys

    import torch

    PLANTED = os.environ.get("PLANTED", "").split(",")


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
            torch.nn.Conv2d(3, 8, 3, padding=1),
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


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def interpreter(folder: Path, planted: str) -> str:
    """Return an interpreter whose models are changed, as a script that prints a line of its own."""
    start = f'PLANTED={planted} exec "{sys.executable}" "$@"'
    return script(folder / f"python-{planted}", "echo loading an environment", start)


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
    of_process = {"flag", "threads"}.intersection(planted) or {"unknown"}
    assert {cause_of(first.before, first.after, settings, None).cause} == of_process


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
    assert "the new interpreter: it ended by SIGABRT" in crashed.change.sentence
    assert found["0 forward"].change.ratio is not None
    assert found["2 backward"].change.ratio is not None


@pytest.mark.timing
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
        (["--new", "{crash}"], "--new .*python-crash: it ended by SIGABRT"),
        (["planted_models:broken"], "--old .*broken\\(\\) raised RuntimeError: no weights$"),
        (["planted_models:missing"], "--old .*has no attribute 'missing'"),
        (["planted_models:needs_an_argument"], "--old .*missing 1 required positional argument"),
        (["planted_models:model", "--input", "2,5,16,16"], "called on shape \\(2, 5, 16, 16\\)"),
        (["planted_models:model", "--layer", "99"], "--layer must be one of .*got '99'"),
        (
            ["test_planted.py::test_no"],
            "--old .*exit code 4 .*not found: .*test_planted.py::test_n",
        ),
        (["test_broken.py"], "--old .*cannot be collected .*No module named 'no_such_module'"),
        (["test_planted.py", "--old", "{bare}"], "--old .*: convtime is not installed there"),
    ],
)
def test_bad_input_is_one_sentence(folder, capsys, arguments, said):
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['pytest_convtime'] = None\n")
    named = {
        "no_torch": script(folder / "python-no-torch", f'exec "{sys.executable}" -S "$@"'),
        "crash": interpreter(folder, "crash"),
        "bare": script(folder / "python-bare", f'PYTHONPATH={folder} exec "{PYTHON}" "$@"'),
    }
    given = [each.format(**named) for each in arguments]
    usual = {"--old": sys.executable, "--new": sys.executable}
    tests = any(each.startswith("test_") for each in given)
    usual |= {} if tests else {"--input": "2,3,16,16"}
    for option, value in usual.items():
        given += [] if option in given else [option, value]
    if not tests and not any("planted_models" in each for each in given):
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
    time_bursts = upgrading._time_bursts

    def interrupted(each, *arguments):
        if each.layers == (lines[1],) and each.which == "forward":
            raise KeyboardInterrupt
        return time_bursts(each, *arguments)

    monkeypatch.setattr(upgrading, "_time_bursts", interrupted)
    command = ["upgrade", "--old", sys.executable, "--new", sys.executable, "--json", "-", *QUICK]
    assert cli.main([*command, *lines]) == INTERRUPTED
    found = Upgrade.from_dict(json.loads(capsys.readouterr().out))
    assert found.interrupted
    passes = ("forward", "backward")
    assert {each.title for each in found.layers} == {f"{lines[0]} {which}" for which in passes}
    assert found.failures == tuple(f"{lines[1]} {which}: it was interrupted" for which in passes)
    assert found.pairs == 0
    assert "whether the findings repeat: it was interrupted" in found.missing
    assert cli.main([*command, lines[1]]) == INTERRUPTED  # nothing was timed
