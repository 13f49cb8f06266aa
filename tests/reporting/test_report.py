"""Pages of results: their content and policy, and the command that writes them."""

import base64
import dataclasses
import hashlib
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from convtime.cli import main
from convtime.core.errors import InputError
from convtime.exchange.files import write_measurements
from convtime.regression.baseline import Baseline
from convtime.reporting.report import page_of_results
from convtime.storage.load import MODULES
from convtime.timing.measurement import Measurements
from tests.helpers.commands import Capture, error_of
from tests.helpers.every_result import every_result, sampled


def page_of(*results: Any) -> str:
    """Return the page of results, which are named a, b and so on."""
    stored = [Measurements(each) if isinstance(each, dict) else each for each in results]
    return page_of_results(dict(zip("ab", stored, strict=False)))


def summary_of(*results: Any) -> str:
    """Return what a page has above the results."""
    return page_of(*results).partition("<section")[0]


def test_the_policy_allows_two_scripts_and_a_style_by_their_hashes(tmp_path: Path) -> None:
    page = page_of(*[*every_result().values()][:2])
    found = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)">', page)
    assert found is not None
    directives = dict(each.split(" ", 1) for each in found[1].split("; "))
    scripts, styles = directives.pop("script-src"), directives.pop("style-src")
    assert directives == dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    for tag, allowed in (("script", scripts), ("style", styles)):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [hashlib.sha256(content.encode()).digest() for content in contents]
        assert allowed.split() == [
            f"'sha256-{base64.b64encode(each).decode()}'" for each in digests
        ]
    assert page.count("<script") == 3  # the third is data
    assert not re.search(r"<(link|img|iframe|object)\b", page.partition('id="figures"')[0])


def test_a_result_writes_its_own_page(tmp_path: Path) -> None:
    results: dict[str, Any] = every_result()
    for kind in MODULES:
        results[kind].report(tmp_path / "own.html")
        page = (tmp_path / "own.html").read_text(encoding="utf-8")
        assert page.count("<section") == page.count("<h1") == 1, kind
    with pytest.raises(InputError, match=r"must end in \.html"):
        results["Measurement"].report(tmp_path / "own.pdf")


def test_two_runs_have_verdicts(tmp_path: Path) -> None:
    before = {name: sampled(name, count=200) for name in ("same", "slower", "before only")}
    slower = sampled("slower", 1.3e-5, count=200)
    after = {"same": before["same"], "slower": slower, "after only": sampled("after only")}
    summary = summary_of(before, after)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>.*?</tr>", summary)]
    verdicts = {row[0]: row[-1] for row in rows if len(row) == 5}
    assert verdicts == {
        "same": "same",
        "slower": "slower",
        "before only": "missing",
        "after only": "new",
    }
    ratio = next(float(row[3].split()[0]) for row in rows if len(row) == 5 and row[0] == "slower")
    assert ratio == pytest.approx(slower.median / before["slower"].median, rel=0.01)
    assert "4 compared: 1 slower" in summary
    assert "different hardware" not in summary


def test_what_makes_results_hard_to_compare_is_said() -> None:
    other = sampled("relu", provenance={"gpu": "NVIDIA B200", "cpu": "x", "threads": 2})
    page = summary_of(sampled("relu"), other)
    assert "from different hardware" in page
    assert "NVIDIA H200: a; NVIDIA B200: b" in page
    assert "uncertain" in page
    assert re.search("<tr>.*?>gpu<.*?>NVIDIA H200<.*?>NVIDIA B200<.*?</tr>", page)
    assert ">threads<" not in page
    several = every_result()["Measurements"]
    assert "12 measurements, with medians from " in page_of(several)
    page = summary_of({"x": sampled("x"), "y": other}, several)
    assert "are not compared: a and b have no name in common" in page
    assert "are not compared" in summary_of(other, sampled("relu", seconds=math.nan))
    unlike = summary_of(*(every_result()[kind] for kind in ("Energy", "Recording")))
    assert 'class="caution"' not in unlike


def test_megabytes_and_numbers_that_are_none_are_written(tmp_path: Path) -> None:
    huge, seconds = "x" * (1 << 20), (math.nan, math.inf, 1e-300)
    odd = dataclasses.replace(sampled("odd", count=3), seconds=seconds, flops=math.inf)
    page = page_of({huge: sampled(huge), "odd": odd})
    assert len(page) < 2e6
    assert "x… (1,048,576 characters)" in page


def test_saved_runs_of_one_measurement_keep_their_noise_under_another_name(tmp_path: Path) -> None:
    def saved(title: str, *factors: float) -> Baseline:
        runs = [
            {title: dataclasses.replace(sampled(title), seconds=(factor * 1e-5,) * 40)}
            for factor in factors
        ]
        return Baseline.of(runs, {title: title}, calibrated=len(factors) > 1)

    quiet = saved("one", *(1 + 1e-4 * index for index in range(10)))
    for title in ("one", "renamed"):
        summary = summary_of(quiet, saved(title, 1.02))
        assert ">slower<" in summary  # by more than the calibrated margin, and less than 3 %


@pytest.fixture
def saved(tmp_path: Path) -> str:
    sampled("relu").save(tmp_path / "relu.json")
    return str(tmp_path / "relu.json")


def test_the_command_writes_and_prints_a_page(saved: str, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    write_measurements({"a": sampled("a"), "b": sampled("b")}, tmp_path / "two.csv")
    assert main(["report", saved, str(tmp_path / "two.csv"), "-o", str(page)]) == 0
    assert capsys.readouterr() == ("", "")
    written = page.read_text(encoding="utf-8")
    for told in ("relu.json", "two.csv", "different schemas"):
        assert told in written
    assert main(["report", saved, "-o", "-"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<!doctype html>")
    assert printed.endswith("</html>\n")
    assert "different schemas" not in printed


def test_bad_files_and_outputs_are_one_sentence(
    saved: str, tmp_path: Path, capsys: Capture
) -> None:
    bad, page = tmp_path / "bad.json", str(tmp_path / "page.html")
    bad.write_text("{")
    assert main(["report", saved, str(bad), "-o", page]) == 2
    assert error_of(capsys).startswith(f"{bad}: is not valid JSON")
    assert not Path(page).exists()
    for arguments, said in (
        ([saved], "required: -o/--output"),
        ([saved, "-o", str(tmp_path / "page.pdf")], "must end in .html"),
        ([saved, "-o", str(tmp_path / "missing" / "page.html")], "cannot be written"),
        ([saved, saved, "-o", page], "must be named once"),
        ([page, "-o", page], "must name different files"),
    ):
        assert main(["report", *arguments]) == 2
        assert said in error_of(capsys)


def test_a_page_needs_no_other_package(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["report", saved, "-o", str(tmp_path / "page.html")]) == 0
