"""What the command line says of itself: help, completion, documentation."""

import itertools
import re
import shlex
import subprocess
import sys

import pytest

from convtime import cli
from convtime.cli import exit_codes
from tests.helpers import ROOT


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_options_and_files(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "--fail-on" in script
    assert "compare" in script
    assert ("_shtab_compgen_files" if shell == "bash" else "_files") in script


def test_completion_of_another_shell_is_refused(capsys):
    assert cli.main(["completion", "cmd"]) == 2
    assert "invalid choice: 'cmd'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("started_as", "argument", "code", "imports_torch"),
    [
        *((how, "--help", 0, False) for how in ("module", "script")),
        *((how, "--version", 0, False) for how in ("module", "script")),
        *((how, "tme", 2, False) for how in ("module", "script")),
        ("module", "config", 0, True),
    ],
)
def test_only_commands_that_need_torch_import_it(
    tmp_path, started_as, argument, code, imports_torch
):
    script = tmp_path / "convtime"
    script.write_text("import sys\nfrom convtime.cli import main\nsys.exit(main())\n")
    program = ["-m", "convtime"] if started_as == "module" else [script]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *program, argument],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    imported = re.findall(r"\|\s+(\S+)$", done.stderr, re.MULTILINE)
    assert "argparse" in imported
    assert ("torch" in imported) == imports_torch


@pytest.mark.parametrize("module", ["other", "other.convtime"])
def test_another_programs_import_registers_the_ops(tmp_path, module):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text(
        "import convtime, torch\nprint(torch.ops.convtime.conv2d)\n"
    )
    for name in ("__main__", "convtime"):
        (tmp_path / "other" / f"{name}.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", module, "convtime"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "convtime.conv2d" in done.stdout


def test_statements_can_use_the_ops(tmp_path):
    statement = "torch.ops.convtime.conv2d(x, x, None, [1, 1], [0, 0], [1, 1], 1)"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "convtime",
                "time",
                statement,
                "-s",
                "x = torch.ones(1, 1, 1, 1)",
            ),
            *("--device", "cpu", "--budget", "0.01"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_help_lists_exit_codes(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    for code in ("0 ", "1 ", "2 ", "130 ", "CODE "):
        assert f"\n  {code}" in shown


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))],
    ids=lambda path: path.name,
)
def test_commands_in_the_documentation_can_be_parsed(path):
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        command = re.search(r"(?:^|&& )convtime (.*)", line)
        if command is not None:
            words = shlex.split(command[1], comments=True)
            arguments = itertools.takewhile(lambda word: word not in ("<", ">", "&&"), words)
            cli.make_parser().parse_args(list(arguments))


def test_the_documentation_lists_the_exit_codes():
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    for code, meaning in exit_codes.MEANINGS.items():
        plain = meaning.replace("--uncertain names", "`--uncertain CODE` names")
        plain = re.sub(r"(?<!`)--fail-on(?!`)", "`--fail-on`", plain)
        assert f"| {code} | {plain} |" in text


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("convtime com", {"compare", "compare-files", "completion"}),
        ("convtime conv --la", {"--layers", "--layout"}),
        ("convtime time --method ke", {"kernel"}),
    ],
)
def test_bash_completes(capsys, words, completed):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = (
        f"{script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        "$(complete -p convtime | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\necho ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) == completed
