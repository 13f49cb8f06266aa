"""Program of a process that runs pytest tests, one for each question, for their recorded times.

Its interpreter's convtime times them: the fixtures of the pytest plugin. It answers questions
as probe.py does.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass(eq=False)
class RequestedTests:
    """Pytest plugin that runs tests by request.

    Attributes:
        questions: the requests.
        answer: sends an answer.
        program: probe.py's definitions.
        probe: its probe of the device.
        answered: whether the question that loads the tests is answered.
        failures: failures of the collection or of the last test.
    """

    questions: Iterator[dict[str, Any]]
    answer: Callable[[dict[str, Any]], None]
    program: dict[str, Any]
    probe: Any
    answered: bool = False
    failures: list[str] = dataclasses.field(default_factory=list)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid}: {_last_line(report.longreprtext)}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = _last_line(report.longreprtext) if crash is None else crash.message
            self.failures.append(f"it failed ({message.strip().splitlines()[0]})")
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.failures.append(f"it was skipped ({report.longrepr[2].partition(': ')[2]})")

    def pytest_runtestloop(self, session: Any) -> bool:
        """Answer until the parent ends."""
        self.answered = True
        if self.failures:
            self.answer({"unusable": f"its tests cannot be collected ({self.failures[0]})"})
            return True
        items = {item.nodeid: item for item in session.items}
        self.answer({"tests": [*items], **self.program["settings"]()})
        for question in self.questions:
            self.answer(self._run(items[question["test"]], items.get(question["next"])))
        return True

    def _run(self, item: Any, following: Any) -> dict[str, Any]:
        from pytest_convtime import _SESSION

        self.failures.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self.program["wait_until_quiet"]()
        if self.failures:
            return {"unusable": self.failures[0], "broken": self.probe.is_broken()}
        document: dict[str, Any] = item.config.stash[_SESSION].document(item.nodeid)
        return document


def main(parent: Any) -> int:
    """Answer the questions of the parent; return pytest's exit code."""
    # By its path, because this interpreter's convtime may be another one.
    program = runpy.run_path(str(Path(__file__).with_name("probe.py")))
    questions = program["questions"](parent)
    answer = functools.partial(program["answer"], parent)
    next(questions)  # about the environment
    device = "cuda" if program["torch"].cuda.is_available() else "cpu"
    probe = program["Probe"](device)
    answer(probe.environment())
    paths = next(questions)["paths"]
    for package in ("pytest", "pytest_convtime"):
        if importlib.util.find_spec(package) is None:
            name = package.partition("_")[2] or package
            answer({"unusable": f"{name} is not installed there, which tests require"})
            return 0
    import pytest

    tests = RequestedTests(questions, answer, program, probe)
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "request.json")
        request.write_text(
            json.dumps({"tests": None, "output": f"{folder}/output.json", "reproducers": False}),
            encoding="utf-8",
        )
        one_process = ["-n0"] if importlib.util.find_spec("xdist") else []
        options = ["-q", "-p", "no:cacheprovider", f"--convtime-again={request}", *one_process]
        code = pytest.main([*paths, *options], plugins=[tests])
    return 0 if tests.answered else int(code)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].removeprefix("E").strip()


if __name__ == "__main__":
    sys.exit(main(globals()["parent"]))
