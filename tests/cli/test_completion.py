"""`convtime --completion`: scripts with which shells complete commands, options and files."""

from __future__ import annotations

import subprocess

import pytest

from convtime import cli
from tests.helpers.commands import Capture


def test_bash_and_zsh_have_commands_options_and_files(capsys: Capture) -> None:
    scripts = {}
    for shell, of_files in (("bash", "_shtab_compgen_files"), ("zsh", "_files")):
        with pytest.raises(SystemExit) as stop:
            cli.main(["--completion", shell])
        assert stop.value.code == 0
        scripts[shell] = capsys.readouterr().out
        for word in ("compare", "--fail-on", of_files):
            assert word in scripts[shell]
    for words, completed in (
        ("convtime com", "compare"),
        ("convtime conv --la", "--layers --layout"),
        ("convtime time --method ke", "kernel"),
    ):
        asked = (
            f"{scripts['bash']}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
            "$(complete -p convtime | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\necho ${COMPREPLY[@]}"
        )
        told = subprocess.check_output(["bash", "-c", asked], text=True, timeout=60)
        assert set(told.split()) == set(completed.split())
