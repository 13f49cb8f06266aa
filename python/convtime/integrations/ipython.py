"""IPython and Jupyter: ``%load_ext convtime`` adds magics and progress bars."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, needs_local_scope
from IPython.display import display

from convtime.cli import compare, snippet
from convtime.core.errors import InputError, one_line
from convtime.integrations.progress import progress_bar
from convtime.sweeps.comparison_table import ComparisonTable
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from convtime.timing.sampling.measure import watch_with
from convtime.timing.snippet import raised_by

_Result = TypeVar("_Result")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Handle ``%load_ext convtime``: add the magics, and show a bar during long timings."""
    shell.register_magics(_Timing)
    watch_with(progress_bar)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Handle ``%unload_ext convtime``: remove the additions."""
    for kind in ("line", "cell"):
        for name in ("time_op", "compare"):
            shell.magics_manager.magics[kind].pop(name, None)
    watch_with(None)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are a line in the notebook, and do not exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see %{self.prog}?")


# Begins a candidate in a cell of %%compare.
_HEADING = "## "


def _make_parser(prog: str, usage: str, add_options: Callable[[_Parser], None]) -> _Parser:
    parser = _Parser(prog=prog, usage=usage, add_help=False, allow_abbrev=False)
    parser.add_argument(
        "-o", dest="give_back", action="store_true", help="return the result, and do not show it"
    )
    add_options(parser)
    return parser


@magics_class
class _Timing(Magics):
    """The magics; they time statements like `convtime time` and `convtime compare`."""

    _parser = _make_parser("time_op", "%%time_op [options] statement", snippet.add_options)
    _compare_parser = _make_parser("compare", "%%%%compare [options]", compare.add_options)

    @needs_local_scope
    @line_cell_magic
    def time_op(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Measurement | None:
        """Time a statement, or the statements of a cell, with convtime.time_op.

            %time_op --cache warm torch.relu(x)
            measured = %time_op -o torch.relu(x)

            %%time_op --setup "y = torch.randn_like(x)"
            z = x + y
            torch.relu(z)

        Statements can use the notebook's variables. Their assignments are discarded. In a cell,
        code after the options on the first line runs once before, as a setup does. Options at the
        beginning of the line end at the statement, or at ``--``.
        """
        options, rest = _parse(line, self._parser)
        statement = rest
        if cell is not None:
            statement = cell
            options.setup = [*options.setup, rest]
        assert self.shell is not None  # it is None only before a shell registers it
        namespace = {**self.shell.user_ns, **(local_ns or {})}
        with _errors_in_one_line():
            snippet.set_up(options, namespace)
            code = self.shell.transform_cell(statement)  # type: ignore[no-untyped-call]
            measured = snippet.time_statement(code, options, namespace)
        return _show_or_return(measured, options)

    @needs_local_scope
    @cell_magic
    def compare(
        self, line: str, cell: str, local_ns: dict[str, Any] | None = None
    ) -> Comparison | ComparisonTable | None:
        """Compare the statements of a cell with convtime.compare.

            %%compare --over n=64,256,1024
            x = torch.randn(n, n)
            ## relu
            torch.relu(x)
            ## clamp
            torch.clamp(x, 0)

        A line that begins with ## names a candidate, whose statements follow. Code before the first
        of the lines is the setup. With --over, the setup runs for each candidate at each point,
        and the axes are variables. Statements can use the notebook's variables.
        """
        options, rest = _parse(line, self._compare_parser)
        if rest:
            raise UsageError(f"statements must be in the cell, got {rest!r} on the first line")
        assert self.shell is not None  # it is None only before a shell registers it
        transform: Any = self.shell.transform_cell
        setup, statements = _candidates_in(cell)
        options.setup = [*options.setup, transform(setup)]
        statements = {name: transform(code) for name, code in statements.items()}
        namespace = {**self.shell.user_ns, **(local_ns or {})}
        with _errors_in_one_line():
            compare.check_baseline(options, statements)
            compared: Comparison | ComparisonTable
            if options.over:
                compared = compare.table_of(statements, options, namespace)
            else:
                compare.check_only_over(options)
                snippet.set_up(options, namespace)
                compared = compare.compare_statements(statements, options, namespace)
        return _show_or_return(compared, options)


_Timing.time_op.__doc__ = f"{_Timing.time_op.__doc__}\n{_Timing._parser.format_help()}"
_Timing.compare.__doc__ = f"{_Timing.compare.__doc__}\n{_Timing._compare_parser.format_help()}"


def _show_or_return(result: _Result, options: argparse.Namespace) -> _Result | None:
    if options.give_back:
        return result
    display(result)  # type: ignore[no-untyped-call]
    return None


def _candidates_in(cell: str) -> tuple[str, dict[str, str]]:
    """Return the setup of a cell, and its candidates by name.

    Raises:
        UsageError: there is no candidate, one has no name, or two have the same.
    """
    setup, *parts = re.split(rf"^{_HEADING}", cell, flags=re.MULTILINE)
    candidates: dict[str, str] = {}
    for part in parts:
        name, _, code = part.partition("\n")
        if not name.strip() or name.strip() in candidates:
            raise UsageError(f"each candidate must have a name of its own, got {name.strip()!r}")
        candidates[name.strip()] = code
    if not candidates:
        raise UsageError(
            f"each candidate must begin with a line such as {_HEADING + 'relu'!r}, got none"
        )
    return setup, candidates


def _parse(line: str, parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, str]:
    """Parse the options at the beginning of a line; return them and the unchanged rest.

    Only the options are quoted as in a shell: a statement has its own quotes.

    Raises:
        UsageError: an option is unknown, or a quote in them is not closed.
    """
    actions = parser._option_string_actions
    text = io.StringIO(line)
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    given: list[str] = []
    rest = line.strip()
    wants_value = False
    while wants_value or rest.startswith("-"):
        try:
            argument = lexer.get_token()
        except ValueError as error:
            raise UsageError(f"the options have invalid quotes ({error}): {line.strip()}") from None
        rest = line[text.tell() :].strip()
        if argument is None or (argument == "--" and not wants_value):
            break
        given.append(argument)
        action = actions.get(argument)
        wants_value = not wants_value and action is not None and action.nargs != 0
    return parser.parse_args(given), rest


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Keep the traceback of errors that statements raise; report all others in one line."""
    try:
        yield
    except InputError as error:
        raise UsageError(str(error)) from error
    except (ValueError, RuntimeError, OSError) as error:
        if raised_by(error):
            raise
        raise UsageError(one_line(error)) from error
