"""Whether `convtime upgrade` finds what one interpreter does slower, where, and why.

Both interpreters are this one: the new one runs another model file, other settings or another
environment. A row is one run of the command, on a group of independent layers in some of which
something is planted (see plants.py), or on an unchanged ResNet-50.

The truth is how long each pass of each layer takes by torch.profiler's kernels, in a process of
each side. A plant counts if it makes a pass of its layer slower by
2 % or more; it is judged by the pass that it slows down most. Not more large plants count than
small ones, which cost 2 to 10 % of their layer. A layer in which nothing is planted is unchanged,
and so is the backward pass where extra work is planted in the forward pass. Any of these that is
found slower or faster is a false alarm.
"""

import results
from common import summaries

LEAST = 1.02
SMALL = 1.10  # up to which a plant is small
RESNET50, IN_HALF = "ResNet-50", "ResNet-50 in float16, channels_last"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    plants = [plant for row in rows for plant in counted(row)]
    unchanged = [found for row in rows for found in row["unchanged"].values()]
    small = sum(plant["truth"] <= SMALL for plant in plants)
    return summaries.known(
        unchanged=len(unchanged),
        false_alarms=sum(summaries.is_certain(found["verdict"]) for found in unchanged),
        planted=small + min(small, len(plants) - small) if plants else None,
        right_layer=summaries.share(map(_is_found, plants)),
        right_cause=summaries.share(
            _is_found(plant) and plant["cause"] == plant["right_cause"] for plant in plants
        ),
        resnet50_s=summaries.by_key(rows).get(RESNET50, {}).get("seconds"),
    )


def counted(row: results.Row) -> list[results.Row]:
    return [plant for plant in row["plants"].values() if plant["truth"] >= LEAST]


def _is_found(plant: results.Row) -> bool:
    return bool(plant["verdict"] == "slower")


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        for name, plant in row["plants"].items():
            if plant["truth"] >= LEAST:
                found = f"{plant['ratio']:.4f} ({plant['verdict']})"
                cells = (row["key"], name, plant["which"], f"{plant['truth']:.4f}", found)
                lines.append((*cells, plant["cause"] or "–", plant["right_cause"]))
    header = "group | layer | pass | true ratio: | found: | cause | right cause"
    return summaries.markdown(header, lines)
