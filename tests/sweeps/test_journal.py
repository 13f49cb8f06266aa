"""The file of a sweep: an interrupted run goes on there, and that of another run is refused."""

import functools
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import Sweep
from convtime.core.errors import InputError
from convtime.device.provenance import provenance
from convtime.sweeps import application, journal, worker
from tests.sweeps.test_sweep import COUNTED, PLAN, QUICK, SIZES, Recorder, nothing


def read(file: Path) -> Sweep:
    found = journal.read(io.BytesIO(file.read_bytes()), "a").result
    assert isinstance(found, Sweep)
    return found


def test_a_point_that_fails_is_marked_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    broken = True

    def raising(size: int) -> BaseException | None:
        if size == 4:
            return SystemExit("enough")
        return MemoryError("no room\nat all") if size == 2 and broken else None

    factory = Recorder(raising)
    swept = convtime.sweep({"r": factory}, {"size": [1, 2, 3, 4]}, file=file, **QUICK)
    errors = [point.error for point in swept.points]
    assert errors == ["", "MemoryError: no room", "", "SystemExit: enough"]
    assert list(swept.measurements) == ["r size=1", "r size=3"]
    assert "r size=2 failed: MemoryError: no room" in str(swept)
    assert "failed" in str(swept).splitlines()[3]
    broken = False
    factory.made.clear()
    again = convtime.sweep({"r": factory}, {"size": [1, 2, 3, 4]}, file=file, **QUICK)
    assert {size for size, _ in factory.made} == {2, 3}  # 3 is the control
    assert [point.name for point in again.failed] == ["r size=4"]


def interrupted_at(visit: int) -> Callable[[int], BaseException | None]:
    visits = iter(range(1, 100))
    return lambda _: KeyboardInterrupt() if next(visits) == visit else None


@pytest.mark.parametrize(
    ("torn", "line_end"), [(b"", b"\n"), (b'{"application": "relu", "v', b"\r\n")]
)
def test_an_interrupted_sweep_goes_on(tmp_path: Path, torn: bytes, line_end: bytes) -> None:
    file = tmp_path / "a.jsonl"
    factory = Recorder(interrupted_at(5))
    with pytest.raises(KeyboardInterrupt):
        convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    before = convtime.read_measurements(file)
    assert len(before) == 3
    whole = file.read_bytes().replace(b"\n", line_end)
    file.write_bytes(whole + torn)
    partial = read(file)
    assert len(partial.missing) == 3
    assert "not measured: the run was interrupted" in str(partial)
    factory.made.clear()
    swept = convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    assert len(factory.made) == 1 + 3 + 1
    assert swept.measurements.items() >= before.items()
    assert len(swept.measurements) == 6
    assert not swept.missing
    assert len(swept.controls) == 3
    assert read(file) == swept
    content = file.read_bytes()
    assert content.startswith(whole + b"{")
    factory.made.clear()
    assert convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK) == swept
    assert factory.made == []
    assert file.read_bytes() == content


def test_an_empty_file_is_begun_and_one_that_ends_in_its_first_line_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.touch()
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    whole = file.read_text()
    file.write_text(whole[:100])
    with pytest.raises(InputError, match="ends in its first line"):
        convtime.read_measurements(file)


def other(size: int, dtype: torch.dtype) -> Callable[[], object]:
    return lambda: (size, dtype)


def one_more(size: int, dtype: torch.dtype) -> Callable[[], object]:
    return lambda: (size, dtype, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {**SIZES, "size": [1, 2]}}, "axis size is 1, 2, 4 in the file, 1, 2 here"),
        ({"axes": {**SIZES, "size": [1.0, 2, 4]}}, "is 1, 2, 4 in the file, 1.0, 2, 4 here"),
        ({"axes": dict(reversed(SIZES.items()))}, "axes in the order size, dtype in the file"),
        ({"axes": {"size": [1]}, "fn": {"a": Recorder()}}, "axis dtype is only in the file"),
        ({"fn": {"a": one_more}}, "application a is "),
        ({"fn": {"b": other}}, "a is only in the file; application b is not in the file"),
        ({"warmup": 2}, "option warmup is 1 in the file, 2 here"),
        ({"warmup": 1.0}, "option warmup is 1 in the file, 1.0 here"),
        ({"cache": "cold"}, "option cache is not in the file"),
        ({"counters": "dram"}, "counters none in the file, dram here"),
        ({"rest": 0.5}, "rest 0.0 in the file, 0.5 here"),
        ({"seed": 2}, "seed 1 in the file, 2 here"),
    ],
)
def test_the_file_of_another_sweep_is_refused_and_stays(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    given: dict[str, Any] = {"fn": {"a": other}, "axes": SIZES, "file": file, "seed": 1, **QUICK}
    convtime.sweep(**given)
    content = file.read_bytes()
    with pytest.raises(InputError, match="a.jsonl: belongs to a different run: ") as refused:
        convtime.sweep(**{**given, **changes})
    assert said in str(refused.value)
    assert file.read_bytes() == content


def test_the_file_of_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    another = provenance(torch.device("cpu")) | {"torch": "9.9"}
    monkeypatch.setattr(worker, "provenance", lambda _: another)
    with pytest.raises(InputError, match=r"machine's torch is .* in the file, 9\.9 here"):
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: "print('mine')\n", "is not the file of a sweep or comparison (unchanged)"),
        (lambda text: text.replace('"schema": "6.', '"schema": "9.', 1), "of schema '9.0' cannot"),
        (lambda text: text.replace("\n", "\nnonsense\n", 1), "line 2: is not valid JSON"),
        (lambda text: text.replace('"visit": 0', '"visit": "x"', 1), "line 2: a SweepPoint cannot"),
        (lambda text: text.replace('{"warmup": 1}', '{"warmup": 2}', 1), "not in the file's plan"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_stays(
    tmp_path: Path, edit: Callable[[str], str], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    file.write_text(edit(file.read_text()))
    content = file.read_bytes()
    with pytest.raises(InputError, match="a.jsonl") as refused:
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    assert said in str(refused.value)
    assert file.read_bytes() == content


def test_of_sweeps_that_start_together_one_has_the_new_file(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def opens(file: Path) -> str:
        together.wait()
        try:
            with journal.open_journal(file, PLAN, seed_given=False):
                together.wait()
                return "has it"
        except InputError as error:
            together.wait()
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            told = [*pool.map(opens, [tmp_path / f"{number}.jsonl"] * 4)]
            assert told.count("has it") == 1
            assert sum("another sweep or comparison is writing" in each for each in told) == 3


def test_a_full_disk_ends_it_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("convtime.sweeps.journal.os.fsync", full)
    file = tmp_path / "a.jsonl"
    with pytest.raises(InputError, match="cannot be written \\(No space left on device\\)"):
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    assert file.read_bytes() == b""
    monkeypatch.undo()
    assert not convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file).missing


def test_code_is_known_again_wherever_it_stands() -> None:
    def function_of(source: str, *, file: str = "a.py") -> Callable[..., object]:
        namespace: dict[str, Any] = {"__name__": "m"}
        exec(compile(source, file, "exec"), namespace)
        found: Callable[..., object] = namespace["f"]
        return found

    source = "def f(a):\n    return lambda: a in {1, 2, 'x'}\n"
    one = application.identity_of(function_of(source))
    assert one.startswith("m.f (")
    assert application.identity_of(function_of("\n\n" + source, file="b.py")) == one
    assert application.identity_of(function_of(source.replace("'x'", "'y'"))) != one
    decorated = [
        function_of("import torch\n@torch.no_grad()\n" + source.replace("'x'", letter))
        for letter in ("'x'", "'y'")
    ]
    assert application.identity_of(decorated[0]) == one != application.identity_of(decorated[1])
    x = torch.ones(2, 3, dtype=torch.float16)
    named = application.identity_of(convtime.Candidate(torch.relu, x, kwargs={"n": 1}))
    assert named.endswith("relu(float16[2×3], n=1)")
    assert application.identity_of(functools.partial(torch.abs, x)).endswith("(float16[2×3], …)")
    assert application.identity_of(Recorder()).startswith(f"{Recorder.__module__}.Recorder (")


def test_a_name_and_an_error_may_have_any_letters(tmp_path: Path) -> None:
    name = "a\u2028b\nc"
    swept = convtime.sweep({name: nothing}, {"warmup": [1]}, **COUNTED, file=tmp_path / "a")
    assert list(convtime.read_measurements(tmp_path / "a")) == [f"{name} warmup=1"]
    assert "a\\u2028b\\nc" in str(swept)
    factory = Recorder(lambda _: ValueError("\udcff is no size"))
    convtime.sweep({"relu": factory}, {"size": [1]}, **QUICK, file=tmp_path / "b")
    convtime.sweep({"relu": Recorder()}, {"size": [1]}, **QUICK, file=tmp_path / "b")
    assert list(convtime.read_measurements(tmp_path / "b")) == ["relu size=1"]
