"""A survey of all GPUs, which are those of a fake NVML."""

import dataclasses
from typing import Any

import pytest
import torch

from convtime import cli
from convtime.health.survey import Survey, survey
from tests.helpers.texts import flat


def surveyed(gpu: Any, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Survey:
    """All GPUs, which are one, with NVML's answers."""
    usual = {
        "Name": "NVIDIA H200",
        "EccMode": [1, 1],
        "TotalEccErrors": lambda *_: 0,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "MaxClockInfo": lambda _: 1980,
        "CurrPcieLinkGeneration": 1,
        "MaxPcieLinkGeneration": 5,
        "NvLinkState": lambda link: 1 if link < 18 else gpu.NVMLError_InvalidArgument(),
    }
    for name, answer in {**usual, **answers}.items():
        monkeypatch.setitem(gpu.answers, name, answer)
    monkeypatch.setattr("convtime.health.survey.provenance", lambda _device: {})
    return survey()


def test_all_gpus_and_links_are_surveyed(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = surveyed(gpu, monkeypatch)
    assert seen.passed
    assert Survey.from_dict(seen.to_dict()) == seen
    for text in ("NVIDIA H200", "16 of 16 lanes", "generation 1 of 5", "18 of 18 active", "41 °C"):
        assert text in str(seen)


@pytest.mark.parametrize(
    ("answers", "status", "word"),
    [
        ({"CurrPcieLinkWidth": 8}, "failed", "8 of 16 lanes"),
        ({"TotalEccErrors": lambda *_: 3}, "failed", "3 uncorrectable"),
        ({"CurrentClocksEventReasons": 0x40}, "failed", "hw_thermal_slowdown"),
        ({"NvLinkState": lambda link: int(link != 5)}, "advice", "links are inactive: 5"),
    ],
)
def test_a_survey_finds_what_is_wrong(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], status: str, word: str
) -> None:
    seen = surveyed(gpu, monkeypatch, **answers)
    (wrong,) = [finding for finding in seen.findings if finding.status != "ok"]
    assert (wrong.status, word in wrong.message) == (status, True)
    failed = int(status == "failed")
    assert seen.passed is (status == "advice")
    assert f"{wrong.status} {wrong.check}: {wrong.message}: {wrong.advice} " in f"{flat(seen)} "
    assert flat(seen).endswith(f"1 GPU: {len(seen.findings)} checks, {failed} failed")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_sm_clock_hz": 0.93 * 1.98e9}, "1841 MHz"),
        ({"name": "NVIDIA L4"}, "it is a NVIDIA L4"),
        ({"max_sm_clock_hz": 1.97e9}, ""),
    ],
)
def test_a_gpu_unlike_its_siblings_is_named(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], word: str
) -> None:
    (first,) = surveyed(gpu, monkeypatch).gpus
    other = dataclasses.replace(first, device="cuda:1", **change)
    seen = Survey((first, other, dataclasses.replace(first, device="cuda:2")), {})
    found = [finding for finding in seen.findings if finding.status != "ok"]
    assert [each.check for each in found] == ["cuda:1 siblings"] * bool(word)
    assert all(word in each.message for each in found)


def test_a_survey_needs_a_gpu_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["doctor", "--all"]) == 2
    assert "PyTorch finds none" in capsys.readouterr().err
    for unneeded in (["--device", "cpu"], ["--prove"]):
        assert cli.main(["doctor", "--all", *unneeded]) == 2
        assert "leave out --device and --prove" in capsys.readouterr().err
