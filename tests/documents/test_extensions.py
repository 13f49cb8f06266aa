"""What docs/architecture.md names for something new suffices, in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import convtime
from tests.helpers import ROOT

#: An anchor of a file, and what is written before it.
Edits = dict[str, list[tuple[str, str]]]

OPTION: Edits = {
    "timing/options.py": [
        (
            "    log: Annotated[\n",
            '    patience: Annotated[int, "how long to wait, in calls."] = 3\n',
        ),
        ("    quick: bool\n    budget: float\n", "    patience: int\n"),
    ]
}
CONDITION: Edits = {
    "timing/measurement.py": [
        ("    clocks: str\n", "    mood: Condition[str]\n"),
    ],
    "timing/show.py": [
        ('        ("cache", _used(measured.cache)),\n', '        ("mood", _used(measured.mood)),\n')
    ],
    "timing/sampling/measure.py": [
        (
            "            pages=of_pages,\n",
            '            mood=Condition("calm", "auto", "nobody shouts"),\n',
        )
    ],
}
METHOD: Edits = {
    "timing/options.py": [('"kernel", "event"', '"sundial", ')],
    "device/config.py": [('"kernel": no_cupti', '"sundial": "the sky is cloudy", ')],
}
RESULT: Edits = {
    "health/greeting.py": [
        (
            "",
            """
import dataclasses

from convtime.core import codec
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True, repr=False)
class Greeting(codec.Stored, Shown, show="convtime.health.show_greeting"):
    \"\"\"A greeting.\"\"\"

    words: str
""",
        )
    ],
    "health/show_greeting.py": [
        (
            "",
            """
from convtime.view.page import Line


def line(result):
    return f"it says {result.words}"


def details(result):
    yield Line(line(result), role="answer")
""",
        )
    ],
    "storage/load.py": [('    "Plans": ', '    "Greeting": "convtime.health.greeting",\n')],
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a new option, condition, method and type of result."""
    folder = tmp_path_factory.mktemp("extended")
    source = Path(convtime.__file__).parent
    shutil.copytree(
        source, folder / "convtime", ignore=shutil.ignore_patterns("_builds", "__pycache__")
    )
    (folder / "convtime" / "_builds").symlink_to(source / "_builds")
    for edits in (OPTION, CONDITION, METHOD, RESULT):
        assert len(edits) <= 6
        for name, changes in edits.items():
            path = folder / "convtime" / name
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            for anchor, added in changes:
                assert text.count(anchor) == 1 or not text, f"{name}: {anchor}"
                text = text.replace(anchor, added + anchor, 1)
            path.write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, code: str) -> str:
    """What code prints that imports the copy."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import convtime\n{code}"],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def named_in_architecture(*names: str) -> bool:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Where to add something")[2].partition("\n## ")[0]
    return all(name in section for name in names)


@pytest.mark.thorough
def test_an_option(copied: Path) -> None:
    assert named_in_architecture(*OPTION)
    printed = run(
        copied,
        """
from convtime.cli import main
quick = {"device": "cpu", "stop": "count", "max_samples": 10}
print(len(convtime.time_op(int, patience=5, **quick).seconds))
print(len(convtime.compare({"a": int, "b": int}, patience=5, check=None, **quick).measurements))
try:
    convtime.race({"a": int, "b": int}, patience=5)
except TypeError as error:
    print(error)
main(["time", "--help"])
""",
    )
    assert printed.startswith("10\n2\nrace has no option 'patience'; there are ")
    assert "--patience" in printed
    assert "how long to wait, in calls" in printed


@pytest.mark.thorough
def test_a_condition(copied: Path) -> None:
    assert named_in_architecture("`Measurement`", "timing/show.py", "timing/sampling/measure.py")
    printed = run(
        copied,
        """
import dataclasses
from convtime.cli import main
measured = convtime.time_op(int, device="cpu", stop="count", max_samples=10)
measured.save("mood.json")
again = convtime.load("mood.json")
assert again.mood == measured.mood
other = dataclasses.replace(again, mood=dataclasses.replace(again.mood, used="wild", reason=""))
print(again.details())
print(convtime.compare_runs({"int": again}, {"int": other}).details())
""".replace('"mood.json"', repr(str(copied / "mood.json"))),
    )
    assert "calm (asked for auto: nobody shouts)" in printed
    assert "mood: calm → wild" in printed


@pytest.mark.thorough
def test_a_method(copied: Path) -> None:
    assert named_in_architecture(*METHOD)
    printed = run(
        copied,
        """
from convtime.cli import main
print(convtime.show_config()["methods"]["sundial"])
try:
    convtime.time_op(int, device="cpu", method="sundial")
except ValueError as error:
    print(error)
main(["time", "--help"])
""",
    )
    assert printed.startswith("the sky is cloudy\n")
    assert "sundial" in printed.splitlines()[1]
    assert "sundial" in printed.partition("--method")[2].partition("--metric")[0]


@pytest.mark.thorough
def test_a_result(copied: Path) -> None:
    assert named_in_architecture("storage/load.py", "`Stored`", "`Shown`")
    printed = run(
        copied,
        """
from convtime.health.greeting import Greeting
Greeting("hello").save("greeting.json")
again = convtime.load("greeting.json")
print(again, repr(again), again.to_markdown(), again.details())
again.report("greeting.html")
""".replace('"greeting.', f'"{copied}/greeting.'),
    )
    assert printed.count("it says hello") == 4
    assert "it says hello" in (copied / "greeting.html").read_text(encoding="utf-8")
