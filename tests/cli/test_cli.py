"""The command line: what it writes, and how it fails."""

import dataclasses
import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

import convtime
from convtime import cli
from convtime.cli import conv as conv_command
from convtime.conv.compare import compare_layers
from convtime.timing.verdict import Ratio
from tests.helpers.waiting import wait_until

HEADER = "w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h"
QUICK = ["--device", "cpu", "--budget", "0.02"]


@pytest.fixture
def layers_csv(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(f"{HEADER}\n9,9,4,2,6,3,3,1,1,1,1\n9,9,4,2,6,1,1,0,0,2,2\n")
    return path


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "convtime", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def one_line_error(stderr):
    assert stderr.startswith("convtime: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    return stderr.removeprefix("convtime: error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("ratio", "identical", "arguments", "code"),
    [
        ((1.1, 1.05, 1.2), True, [], 0),
        ((1.1, 1.05, 1.2), True, ["--fail-on", "slower"], 1),
        ((1.1, 1.05, 1.2), True, ["--fail-on", "faster"], 0),
        ((1.1, 0.9, 1.2), True, ["--fail-on", "slower", "--uncertain", "75"], 75),
        ((1.1, 0.9, 1.2), True, ["--fail-on", "slower,uncertain"], 1),
        ((1.0, 1.0, 1.0), False, ["--fail-on", "different"], 1),
        ((1.0, 1.0, 1.0), False, ["--fail-on", "slower", "--uncertain", "75"], 0),
    ],
)
def test_conv_exits_as_it_is_told(
    monkeypatch, capsys, layers_csv, ratio, identical, arguments, code
):
    def judged(layers, **options):
        for result in compare_layers(layers[:1], **options):
            yield dataclasses.replace(result, ratio=Ratio(*ratio), bit_identical=identical)

    monkeypatch.setattr(conv_command, "compare_layers", judged)
    assert cli.main(["conv", "--layers", str(layers_csv), *QUICK, *arguments]) == code
    assert (f"exits with {code}: line 2 (" in capsys.readouterr().out) is (code != 0)


@pytest.mark.parametrize("code", ["256", "-1", "many", "9" * 5000])
def test_an_exit_code_must_be_one(capsys, code):
    assert cli.main(["conv", "--uncertain", code]) == 2
    assert f"got '{code}', but it must be a whole number from 0 to 255" in capsys.readouterr().err


def test_conv_in_a_pipe(tmp_path, layers_csv):
    done = command(
        "conv",
        "--layers",
        layers_csv,
        *QUICK,
        "--json",
        "a.json",
        "--csv",
        "a.csv",
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert done.stderr == ""  # no progress bar
    assert "\r" not in done.stdout
    assert "line 2" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 distinct layers, 2 bit-identical; ")
    document = json.loads((tmp_path / "a.json").read_text())
    assert set(document) == {"type", "schema", "rows", "provenance"}
    assert document["provenance"]["torch"] == torch.__version__
    assert [row["layer"]["names"] for row in document["rows"]] == [["line 2"], ["line 3"]]
    assert (tmp_path / "a.csv").read_text().count("\n") == 3
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "a.json", "layers.csv"]


def test_progress_bar_on_a_terminal(layers_csv, monkeypatch):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    os.set_blocking(terminal, False)
    with os.fdopen(end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert cli.main(["conv", "--layers", str(layers_csv), *QUICK]) == 0
        shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "\r" in shown
    assert "pass" in shown


def test_outputs_do_not_overwrite_inputs(tmp_path, layers_csv, capsys, monkeypatch):
    before = Path(layers_csv).read_text()
    assert cli.main(["conv", "--layers", str(layers_csv), "--json", str(layers_csv)]) == 2
    assert "must name different files" in capsys.readouterr().err
    assert Path(layers_csv).read_text() == before

    source = tmp_path / "my_own_net.py"
    source.write_text("import torch\ndef net():\n    return torch.nn.Conv2d(3, 4, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = ["--model", "my_own_net:net", "--input", "1,3,8,8"]
    assert cli.main(["conv", *model, "--device", "cpu", "--csv", str(source)]) == 2
    assert "is the source of --model" in capsys.readouterr().err
    assert "def net" in source.read_text()


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_standard_output_that_cannot_be_written_is_no_traceback(redirection):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m convtime config {redirection}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    if redirection == ">/dev/full":
        assert done.returncode == 2
        assert "standard output cannot be written (No space" in one_line_error(done.stderr)
    else:
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_standard_error_that_cannot_be_written_leaves_the_exit_code(redirection):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m convtime no-command {redirection}"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_a_file_that_is_standard_output_gets_the_table_too_without_a_standard_error(
    tmp_path, layers_csv
):
    out = tmp_path / "out"
    with out.open("w") as file:
        arguments = ["conv", "--layers", layers_csv, *QUICK, "--csv", "/dev/stdout"]
        subprocess.run(
            ["bash", "-c", '"$@" 2>&-', "-", sys.executable, "-m", "convtime", *arguments],
            stdout=file,
            check=True,
            timeout=120,
        )
    lines = out.read_text().splitlines()
    assert sum(line.startswith("layer,count,") for line in lines) == 1
    assert sum(line.startswith("line 2 ") for line in lines) == 1
    assert lines[-1].startswith("2 distinct layers, 2 bit-identical; ")


def test_a_terminal_without_the_characters_is_no_error(layers_csv, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    assert cli.main(["conv", "--layers", str(layers_csv), *QUICK]) == 0
    assert b"\\xd7" in written.getvalue()  # ×


def test_one_line_and_exit_code_2_from_a_process(tmp_path):
    done = command("conv", "--layers", tmp_path / "no.csv")
    assert done.returncode == 2
    assert done.stdout == ""
    one_line_error(done.stderr)


IMPORTED = """
import contextlib, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

class InterruptedImport:
    def find_spec(self, name, *_):
        if name == {name!r}:
            with contextlib.suppress({swallowed}):
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, InterruptedImport())
"""


@pytest.mark.parametrize(
    ("started_as", "name"),
    [
        ("module", "torch"),
        ("module", "torch.nn"),
        ("module", "convtime._C"),
        ("module", "rich"),
        ("module", "convtime.conv.step"),
        ("script", "rich"),
        ("script", "convtime._C"),
    ],
)
def test_interrupt_of_the_imports_ends_the_command(tmp_path, name, started_as):
    """Libraries swallow an exception during their imports, or abort."""
    (tmp_path / "sitecustomize.py").write_text(
        IMPORTED.format(name=name, swallowed="KeyboardInterrupt")
    )
    script = tmp_path / "convtime"
    script.write_text("import sys\nfrom convtime.cli import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, *(["-m", "convtime"] if started_as == "module" else [script]), "conv"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "convtime: interrupted\n"


def test_interrupt_of_an_import_by_another_program_is_its_own(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(IMPORTED.format(name="convtime.ops", swallowed=""))
    done = subprocess.run(
        [sys.executable, "-c", "import convtime"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.endswith("\nKeyboardInterrupt\n")


def test_interrupt_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "def net():\n"
        "    pathlib.Path('started').touch()\n"
        "    time.sleep(60)\n"
    )
    out = tmp_path / "out.json"
    out.write_text("old")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "convtime", "conv", "--device", "cpu"),
            *("--model", "slow:net", "--input", "1,3,8,8", "--json", out),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "convtime: interrupted\n")
    assert out.read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_a_reader_that_goes_away_costs_no_file(tmp_path, layers_csv):
    out = tmp_path / "out.json"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "convtime",
            "conv",
            "--layers",
            layers_csv,
            "--json",
            out,
            *QUICK,
        ],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(json.loads(out.read_text())["rows"]) == 2


@pytest.fixture
def no_timing(monkeypatch):
    """Fails the test when a layer is timed after all."""

    def refuse(*arguments, **options):
        raise AssertionError("timing started")

    monkeypatch.setattr(conv_command, "compare_layers", refuse)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["compair"], "invalid choice: 'compair'"),
        (["conv", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["conv", "stray"], "problem 'stray': it must begin with one of conv1d, conv2d"),
        (["conv", "--batch", "0"], "--batch: got '0', but it must be a whole number from 1"),
        (["conv", "--batch", "-3"], "--batch: got '-3'"),
        (["conv", "--batch", "many"], "--batch: got 'many'"),
        (["conv", "--batch", "1_0"], "--batch: got '1_0'"),
        (["conv", "--batch", "٣"], "--batch: got '٣'"),
        (["conv", "--batc", "3"], "unrecognized arguments: --batc"),
        (["--vers", "config"], "unrecognized arguments: --vers"),
        (["conv", "--batch", "9" * 5000], "--batch: got '999"),
        (["conv", "--batch"], "--batch: expected one argument"),
        (["conv", "--budget", "nan"], "--budget: got 'nan', but it must be a positive number"),
        (["conv", "--budget", "inf"], "--budget: got 'inf'"),
        (["conv", "--budget", "0"], "--budget: got '0'"),
        (["conv", "--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["conv", "--layout", "chwn"], "--layout: invalid choice: 'chwn'"),
        (["conv", "--device", "gpu"], "device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["conv", "--layers", "none.csv"], "none.csv: cannot be read"),
        (["conv", "--layers", "/dev/zero"], "/dev/zero: cannot be read, since it is not a"),
        (["conv", "--layers", 300 * "a"], "aaa: cannot be read (File name too long)"),
        (["conv", "--layers", "loop"], "loop: cannot be read (Too many levels of symbolic"),
        (["conv", "--json", "loop"], "loop: cannot be written"),
        (["conv", "--json", 300 * "a"], "(File name too long)"),
        (["conv", "--layers", "\x1b[31m\n.csv"], "\\x1b[31m .csv: cannot be read"),
        (["conv", "--layers", "broken.csv"], "broken.csv, line 3: column k is 'x'"),
        (["conv", "--layers", "a.csv", "--model", "b:c"], "not allowed with argument"),
        (["conv", "conv1d:n1", "--layers", "a.csv"], "not allowed with argument"),
        (["conv", "conv1d:n0c2w9k4s3"], "batch is 0, but must be between 1"),
        (["conv", "--fail-on", "slower,later"], "--fail-on: got 'later', but it must be one of"),
        (["conv", "--fail-on", "missing"], "--fail-on: got 'missing', but it must be one of"),
        (["conv", "--model", "b:c"], "--model needs --input"),
        (["conv", "--input", "1,2"], "--input requires --model"),
        (["conv", "--model", "b:c", "--input", "8,3,x"], "--input: got 'x', but it must be"),
        (["conv", "--model", "b:c", "--input", "8,0"], "--input: got '0'"),
        (["conv", "--model", "b:c", "--input", ""], "--input: got ''"),
        (["conv", "--model", "b:c", "--input", "1,2", "--batch", "3"], "--batch must not be used"),
        (["conv", "--model", "b:c", "--input", "1,2"], "module 'b' was not found"),
        (["conv", "--json", "none/out.json"], "none/out.json: cannot be written"),
        (["conv", "--csv", "."], "not a regular file"),
        (["conv", "--json", ""], "--json: got '', but it must be the name of a file"),
        (["conv", "--layers", ""], "--layers: got '', but it must be the name of a file"),
        (["conv", "--json", "out", "--csv", "./out"], "must name different files"),
        (["conv", "--plot", "out.xyz"], "name must end in one of .png, .svg, .pdf"),
        (["conv", "--plot", "out.pgf"], "name must end in one of .png, .svg, .pdf"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capsys, no_timing, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken.csv").write_text(
        f"{HEADER}\n9,9,4,2,6,3,3,1,1,1,1\n9,9,4,2,x,3,3,1,1,1,1\n"
    )
    if "--device" not in arguments and arguments[:1] == ["conv"]:
        arguments = [*arguments, "--device", "cpu"] if arguments[-1] != "--batch" else arguments
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in one_line_error(captured.err)
    assert sorted(os.listdir(tmp_path)) == ["broken.csv", "loop"]


def test_missing_gpu(monkeypatch, capsys, no_timing):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["conv", "--device", "cuda"]) == 2
    assert "device 'cuda' is not available" in one_line_error(capsys.readouterr().err)


def test_a_layer_that_fails_midway_writes_nothing(tmp_path, capsys):
    path = tmp_path / "layers.csv"
    path.write_text(f"{HEADER}\n9,9,4,2,6,3,3,1,1,1,1\n9,9,4,2147483647,6,1,1,0,0,1,1\n")
    out = tmp_path / "out.json"
    out.write_text("old")
    assert cli.main(["conv", "--layers", str(path), *QUICK, "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert "layer line 3" in one_line_error(captured.err)
    assert "\nline 2 " in captured.out
    assert "distinct layers" not in captured.out
    assert out.read_text() == "old"
    assert cli.main(["conv", "--layers", str(path), "--batch", "1", *QUICK]) == 0


def test_a_file_that_cannot_be_written_after_all_does_not_cost_the_table(
    tmp_path, monkeypatch, capsys, layers_csv
):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    out = tmp_path / "out.json"
    assert cli.main(["conv", "--layers", str(layers_csv), *QUICK, "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert "No space left on device" in one_line_error(captured.err)
    assert "2 distinct layers" in captured.out
    assert os.listdir(tmp_path) == ["layers.csv"]


def test_an_output_that_fails_costs_no_other(tmp_path, capsys, layers_csv):
    outputs = ["--json", "/dev/full", "--csv", str(tmp_path / "a.csv")]
    assert cli.main(["conv", "--layers", str(layers_csv), *QUICK, *outputs]) == 2
    captured = capsys.readouterr()
    assert "/dev/full: cannot be written (No space left on" in one_line_error(captured.err)
    assert "2 distinct layers" in captured.out
    assert (tmp_path / "a.csv").read_text().count("\n") == 3


def test_every_output_that_fails_is_told(tmp_path):
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    arguments = ["time", "abs(-1)", "--json", full]
    done = subprocess.run(
        [*("bash", "-c", '"$@" >/dev/full', "-"), sys.executable, "-m", "convtime", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    told = one_line_error(done.stderr).split("; ")
    assert told == [
        f"{full}: cannot be written (No space left on device)",
        "standard output cannot be written (No space left on device)",
    ]


def test_layers_called_on_nothing_are_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "cli_test_routed.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.busy, self.idle = nn.Conv1d(3, 4, 3), nn.Conv1d(3, 4, 3)\n"
        "    def forward(self, x):\n"
        "        return self.busy(x), self.idle(x[:0])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["conv", "--model", "cli_test_routed:Net", "--input", "2,3,9", *QUICK]
    assert cli.main([*arguments, "--json", "o.json"]) == 0
    document = json.loads((tmp_path / "o.json").read_text())
    assert {row["layer"]["names"][0] for row in document["rows"]} == {"busy"}
    assert document["empty"] == ["idle"]
    shown = capsys.readouterr().out
    assert "not timed (called on an empty input): idle" in shown
    assert "a training step of cli_test_routed:Net on 2×3×9: " in shown


def test_model_dtype_layout_and_plot(tmp_path, monkeypatch, capsys):
    pytest.importorskip("vl_convert")
    (tmp_path / "cli_test_model.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["conv", "--model", "cli_test_model:net", "--input", "2,3,8,8", *QUICK]
    arguments.append("--no-backward")
    arguments += ["--dtype", "bfloat16", "--layout", "nhwc", "--json", "o.json", "--plot", "o.png"]
    assert cli.main(arguments) == 0
    (row,) = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert (row["dtype"], row["layout"]) == ("bfloat16", "nhwc")
    assert row["layer"]["names"] == ["0"]
    assert row["layer"]["problem"]["batch"] == 2
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "bfloat16, nhwc" in shown
    assert "training step" not in shown


def test_a_whole_model_forward_and_backward(tmp_path, monkeypatch, capsys, device):
    (tmp_path / "cli_test_kinds.py").write_text(
        "from torch import nn\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv1d(3, 4, 3), nn.ConvTranspose1d(4, 2, 2, stride=2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["conv", "--model", "cli_test_kinds:net", "--input", "2,3,9", *QUICK]
    arguments += ["--device", device.type, "--json", "o.json", "--csv", "o.csv"]
    assert cli.main(arguments) == 0
    document = json.loads((tmp_path / "o.json").read_text())
    found = [(row["layer"]["names"][0], row["pass_name"]) for row in document["rows"]]
    assert found == [("0", "forward"), ("0", "backward"), ("1", "forward"), ("1", "backward")]
    assert all(row["bit_identical"] for row in document["rows"])
    assert document["step"]["model"] == "cli_test_kinds:net"
    shown = capsys.readouterr().out
    assert "1 backward" in shown
    assert ("1 backward, the same in PyTorch and in convtime:" in shown) == (device.type == "cuda")
    assert "2 convolution layers replaced" in shown
    assert "2 distinct layers in 4 passes, 4 bit-identical" in shown
    assert shown.splitlines()[-1].startswith("a training step of cli_test_kinds:net on 2×3×9: ")
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0].startswith("layer,count,n,c,d,h,w,k,kernel_size,stride,padding,")
    assert lines[1].startswith("0,1,2,3,,,9,4,3,1,0,")


def test_layers_backward_without_a_model(layers_csv, capsys):
    assert cli.main(["conv", "--layers", str(layers_csv), *QUICK, "--backward"]) == 0
    assert "2 distinct layers in 4 passes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--device", "cpu"], 1),
        (["--device", "cpu", "--batch", "5"], 5),
        pytest.param(["--device", "cuda"], 32, marks=pytest.mark.cuda),
    ],
)
def test_resnet50_is_the_default(monkeypatch, arguments, expected):
    seen = []

    def stop(layers, **options):
        seen.extend(layers)
        raise KeyboardInterrupt

    monkeypatch.setattr(conv_command, "compare_layers", stop)
    assert cli.main(["conv", *arguments]) == 130
    assert len(seen) == 23
    assert {layer.problem.batch for layer in seen} == {expected}


def test_version_and_config(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"convtime {convtime.__version__}\n"
    assert cli.main(["config"]) == 0
    assert torch.__version__ in capsys.readouterr().out
