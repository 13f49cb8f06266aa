"""The rows: planted causes and controls, diagnosed."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import results
import torch
from common import running
from common.planting import NOTHING, describe_causes, diagnose_planted

from convtime.core import codec
from convtime.diagnosis.evidence import Evidence
from convtime.diagnosis.rules import judge
from diagnose.causes import CAUSES, CONTROLS

RULES = "python/convtime/diagnosis"
TIMEOUT_SECONDS = 90.0  # of a fresh process, which takes some 20


def make_cases(device: torch.device, rules: str) -> dict[str, running.Measure]:
    rules = rules or find_rules()
    fresh = functools.partial(running.run_fresh, diagnosed, timeout=TIMEOUT_SECONDS)
    return {
        key: functools.partial(
            fresh if plant.cause == "first-call" else diagnosed, device, key, rules
        )
        for key, plant in {**CONTROLS, **CAUSES}.items()
    }


def diagnosed(_: torch.device, key: str, rules: str) -> results.Row:
    found, row = diagnose_planted({**CAUSES, **CONTROLS}, key, rules, device="cuda")
    return {"rules": rules, **judged(found.evidence), **row}


def judged(evidence: Any) -> results.Row:
    causes, without = judge(evidence), judge(evidence.without_counters())
    return {
        "first": causes[0].code if causes else NOTHING,
        "first_without_counters": without[0].code if without else NOTHING,
        "causes": describe_causes(causes),
    }


def judge_again(files: list[str]) -> None:
    rows = [
        row | judged(codec.decode(Evidence, row["evidence"]))
        for file in files
        for row in json.loads(Path(file).read_text(encoding="utf-8"))["rows"]
    ]
    for row in rows:
        print(f"{row['key']}: {row['first']}, and {row['cause']} is right")
    print(results.describe(results.summary_of("diagnose", rows)))


def find_rules() -> str:
    where = str(results.HERE.parent)
    command = ["git", "-C", where, "log", "-1", "--format=%H", "--", RULES]
    found = running.capture(command, timeout=60).stdout.strip()
    if not found:
        raise SystemExit(
            f"error: no git history at {where}; give the commit that froze the rules by --rules"
        )
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--judge"]:
        judge_again(sys.argv[2:])
    else:
        running.run("diagnose", make_cases, rules="")
