"""Command lines that do not fit: an error of one sentence, before anything is timed or written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from convtime import cli
from convtime.sweeps import compare, sweep
from tests.cli.conftest import Judged
from tests.helpers.commands import COUNTED, ON_CPU, Capture, error_of

CONV = "conv2d:n{n}c4h8w8k4r{r}s3p{pad}:{dtype}"
LINE = "conv1d:n{n}c2w9k4s3"
# The command, what follows its options of a device, and what is said.
BAD: dict[str, list[tuple[list[str], str]]] = {
    "": [
        ([], "the following arguments are required: COMMAND"),
        (["--completion", "cmd"], "invalid choice: 'cmd'"),
        (["compair"], "invalid choice: 'compair'"),
        (["--vers", "doctor"], "unrecognized arguments: --vers"),
    ],
    "conv": [
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--fail-on", "slower,later"], "--fail-on: got 'later', but it must be one of"),
        (["--fail-on", "missing"], "--fail-on: got 'missing', but it must be one of"),
        *(
            (["--uncertain", code], f"got '{code}', but it must be a whole number from 0")
            for code in ("256", "-1", "many", "9" * 5000)
        ),
        (["conv1d:n0c2w9k4s3"], "batch is 0, but must be between 1"),
        (["--batch", "0"], "--batch: got '0', but it must be a whole number from 1"),
        (["--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["--device", "cuda"], "device 'cuda' is not available"),
        (["--layers", "none.csv"], "none.csv: cannot be read"),
        (["--layers", "loop"], "loop: cannot be read (Too many levels of symbolic"),
        (["--layers", "layers.csv"], "layers.csv, line 3: column k is 'x'"),
        (["--layers", "a.csv", "--model", "b:c"], "not allowed with argument"),
        (["--model", "b:c"], "--model needs --input"),
        (["--input", "1,2"], "--input requires --model"),
        (["--model", "b:c", "--input", "1,2", "--batch", "3"], "--batch must not be used"),
        (["--model", "b:c", "--input", "1,2"], "module 'b' was not found"),
        (["--json", "loop"], "loop: cannot be written"),
        (["--json", 300 * "a"], "(File name too long)"),
        (["--json", ""], "--json: got '', but it must be the name of a file"),
        (["--json", "out", "--csv", "./out"], "--json and --csv must name different files"),
        (["--plot", "out.xyz"], "name must end in one of .png, .svg, .pdf"),
        (["--json", "x.CSV"], "--json must not name a .csv file"),
    ],
    "time": [
        ([], "the following arguments are required: STATEMENT"),
        (["x"], "line 1 of the statement raised NameError: name 'x' is not"),
        (["1", "-s", "1", "-s", "1/0"], "line 2 of the setup raised ZeroDivision"),
        (["1", "--before", "y"], "line 1 of --before raised NameError"),
        (["1", "--stop", "verdict"], "stop='verdict' needs something to compare"),
    ],
    "compare": [
        ([], "there is nothing to time; give statements, or --named"),
        (["1", "1"], "'1' is given more than once; give each a name"),
        (["-n", "1"], "--named must be NAME=STATEMENT, got '1'"),
        (["1", "--baseline", "2"], "--baseline must be one of '1', got '2'"),
        (["-n", "a=1", "-n", "b=c"], "line 1 of statement 'b' raised NameError"),
        (["1", "2", "--over", "n="], "--over must be NAME=VALUE,VALUE, got 'n='"),
        (["1", "2", "--over", "n=1"], "axis 'n' must be a variable of statement or setup"),
        (["n", "2", "--over", "n=1", "--confirm"], "--confirm cannot be used with --over"),
        (["n", "2", "--over", "n=float16"], "must be Python, such as 64, torch.float16 or 'text'"),
        (["n", "2", "--over", "n=1", "--file", "a", "--csv", "a"], "must name different files"),
        (["1", "2", "--csv", "a"], "--csv requires --over NAME=VALUE,VALUE"),
    ],
    "sweep": [
        (["1"], "at least one axis is needed; give --axis NAME=VALUE,VALUE"),
        (["n", "--axis", "n=1", "--axis", "n=2"], "axis 'n' is given more than once"),
        (["n", "--axis", "n=1,1"], "axis 'n' has the value 1 more than once"),
        (["n", "--axis", "n=abs,abs"], "axis 'n' has a value more than once, got 'abs,abs'"),
        (["n", "--axis", "n=*[10**5000, 1]"], "integers of 64 bits, got 16610 bits; give"),
        (["n", "--axis", "n=exit(3)"], "values of axis 'n' must be Python"),
        (["--axis", "n=1"], "there is nothing to time; give statements"),
        ([CONV, "--axis", "n=1"], "has {r}, but there is no such axis"),
        ([LINE, "--axis", f"n={'9' * 5000}"], "n must be at most 2147483647"),
        ([LINE, "--axis=n=1", "--axis=m=1"], "'m' must be a name in braces"),
        (
            ["conv1d:n{n}c2w{k+1}k4s3", "--axis", "n=1"],
            "has '{k+1}k4s3', but a placeholder must be",
        ),
        (["conv1d:n{n", "--axis", "n=1"], "has '{n', but a placeholder must be a name"),
        ([LINE, "--axis", "n=1", "-s", "1"], "--setup and --before require st"),
        (["conv1d:n1c2w9k4s3", "1", "--axis", "n=1"], "statements and problems cannot be timed"),
        (["n", "--axis", "n=1", "--side", "pytorch"], "--side requires problems"),
        (["n", "--axis", "n=1", "--file", "a", "--csv", "./a"], "must name different files"),
        (["n", "--axis", "n=1", "--json", "loop"], "loop: cannot be written"),
    ],
    "show": [
        (["none.json"], "none.json: cannot be read (No such file"),
        (["half.json"], "half.json: is no"),
    ],
    "doctor": [(["--config", "--all"], "--config examines nothing; leave out --device, --all")],
}
OPTIONS = {"conv": ON_CPU, "time": COUNTED, "compare": COUNTED, "sweep": ON_CPU}


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [(command, *case) for command, cases in BAD.items() for case in cases],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    layers_csv: Path,
    judged: Judged,
    command: str,
    given: list[str],
    says: str,
) -> None:
    asked = judged()
    for module in (sweep, compare):
        monkeypatch.setattr(module, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "half.json").write_text('{"schema": "5.0", "seco')
    layers_csv.write_text(layers_csv.read_text().replace("2,6,1", "2,x,1"))
    before = sorted(tmp_path.iterdir())
    assert cli.main([*filter(None, [command]), *OPTIONS.get(command, ()), *given]) == 2
    assert says in error_of(capsys)
    assert asked == []
    assert sorted(tmp_path.iterdir()) == before
