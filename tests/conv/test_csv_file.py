"""Layers from a CSV file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.conv.csv_file import MOST_LAYERS, from_csv
from convtime.conv.problem import ConvProblem
from convtime.core.errors import InputError
from tests.helpers import BENCHMARKS
from tests.helpers.convolutions import problems

DEEPBENCH = BENCHMARKS / "data" / "deepbench_conv_training.csv"
HEADER = "w,h,c,n,k,filter_w,filter_h,pad_w,pad_h,stride_w,stride_h"
GOOD = "20,30,8,1,16,3,3,1,1,1,1"


def test_deepbench() -> None:
    layers = from_csv(DEEPBENCH)
    assert sum(layer.count for layer in layers) == 90
    first = layers[0].problem
    assert (layers[0].names, first.input_shape) == (("line 2",), (4, 1, 161, 700))
    assert (first.out_channels, first.kernel_size) == (32, (5, 20))
    assert (first.padding, first.stride) == ((0, 0), (2, 2))
    layers = from_csv(DEEPBENCH, batch=3)
    assert {layer.problem.batch for layer in layers} == {3}
    # Lines that differed in the batch only are one problem now.
    assert layers[0].names == ("line 2", "line 3", "line 4", "line 5")
    batch: Any
    for batch in (1.5, "x", -1):
        with pytest.raises(InputError, match=f"batch must be a whole number .* got {batch!r}"):
            from_csv(DEEPBENCH, batch=batch)


PLAIN = problems(numeric=True).filter(
    lambda problem: problem.rank == 2 and not (problem.transposed or problem.bias)
)


@settings(max_examples=30)
@given(problem=PLAIN, data=st.data())
def test_columns_may_be_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, problem: ConvProblem, data: st.DataObject
) -> None:
    columns: dict[str, object] = {
        "n": problem.batch,
        "c": problem.in_channels,
        "k": problem.out_channels,
        "groups": problem.groups,
    }
    for name, numbers in (
        ("", problem.size),
        ("filter_", problem.kernel_size),
        ("pad_", problem.padding),
        ("stride_", problem.stride),
        ("dilation_", problem.dilation),
    ):
        columns |= dict(zip((f"{name}h", f"{name}w"), numbers, strict=True))
    columns["name"] = data.draw(st.sampled_from(['"a, b"', ""]))
    order = data.draw(st.permutations([*columns]))
    path = tmp_path_factory.mktemp("csv") / "layers.csv"
    row = ",".join(str(columns[name]) for name in order)
    path.write_text(f"\ufeff{', '.join(order)}\n\n{row}\n", encoding="utf-8")
    (layer,) = from_csv(path)
    assert layer.problem == problem
    assert layer.names == ("a, b" if columns["name"] else "line 3",)


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    for text, says in (
        ("", "is empty; the first line must name the columns w,h,c"),
        (HEADER + "\n", "no layers"),
        (HEADER.replace(",k", "") + "\n" + GOOD, r"line 1: the header lacks column\(s\) k"),
        (HEADER + ",gruops\n" + GOOD + ",1", "line 1: column 'gruops' is unknown"),
        (HEADER + ",w\n" + GOOD + ",1", "line 1: the header has column 'w' more than once"),
        (f"{HEADER}\n{GOOD}\n1,2,3", "line 3: has 3 values for the header's 11 columns"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('16', 'many')}", "line 3: column k is 'many', but must"),
        (f"{HEADER}\n20,30,8,1,16,3,3,-1,1,1,1", "line 2: column pad_w is '-1'.*from 0 to"),
        (f"{HEADER}\n20,30,8,1,16,3,3,1,1,1,0", "line 2: column stride_h is '0'.*from 1 to"),
        (f"{HEADER}\n20,30,8,1,,3,3,1,1,1,1", "line 2: column k is ''"),
        (f"{HEADER}\n{'9' * 5000},30,8,1,16,3,3,1,1,1,1", "line 2: column w is '9999"),
        (f"{HEADER}\n20,30,8,1,16,3,33,1,1,1,1", "line 2: layer line 2: the kernel spans 33"),
        (f'{HEADER}\n{GOOD}\n"20,30', "line 3: is not CSV"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=f"layers.csv.*{says}"):
            from_csv(path)


def test_too_many_different_layers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(f"{HEADER}\n" + f"{GOOD}\n" * 3 * MOST_LAYERS)
    (layer,) = from_csv(path)
    assert layer.count == 3 * MOST_LAYERS
    lines = [f"{size},30,8,1,16,1,1,0,0,1,1" for size in range(1, MOST_LAYERS + 1)]
    path.write_text("\n".join([HEADER, *lines, *lines[:9]]))
    assert len(from_csv(path)) == MOST_LAYERS
    path.write_text("\n".join([HEADER, *lines, *lines[:9], GOOD]))
    says = f"line {MOST_LAYERS + 11}: is the {MOST_LAYERS + 1}th different layer"
    with pytest.raises(InputError, match=says):
        from_csv(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"w,h\n\xff\xfe")
    for path, says in (
        (tmp_path / "none.csv", r"none\.csv: cannot be read \(No such file"),
        ("/dev/zero", "^/dev/zero: cannot be read, since it is not a regular"),
        (binary, "is not a text file in UTF-8"),
        ("a\0.csv", "must not contain a null character; got 'a"),
    ):
        with pytest.raises(InputError, match=says):
            from_csv(path)
