"""IPython and Jupyter: ``%load_ext convtime`` adds ``%time_op`` and progress bars."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
from collections.abc import Iterator
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope
from IPython.display import display

from convtime.cli import snippet
from convtime.core.errors import InputError, one_line
from convtime.integrations.progress import progress_bar
from convtime.timing.measurement import Measurement
from convtime.timing.sampling.supervision import watch_with
from convtime.timing.snippet import raised_by


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Handle ``%load_ext convtime``: add the magics, and show a bar during long timings."""
    shell.register_magics(_TimeOp)
    watch_with(progress_bar)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Handle ``%unload_ext convtime``: remove the additions."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("time_op", None)
    watch_with(None)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are a line in the notebook, and do not exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see %time_op?")


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="time_op", usage="%%time_op [options] statement", add_help=False, allow_abbrev=False
    )
    parser.add_argument(
        "-o", dest="give_back", action="store_true", help="return the result, and do not show it"
    )
    snippet.add_options(parser)
    return parser


@magics_class
class _TimeOp(Magics):
    """The magics; they time a statement like `convtime time`."""

    _parser = _make_parser()

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
        given, rest = _split(line, self._parser)
        options = self._parser.parse_args(given)
        statement = rest
        if cell is not None:
            statement = cell
            options.setup = [*options.setup, rest]
        assert self.shell is not None  # it is None only before a shell registers it
        namespace = {**self.shell.user_ns, **(local_ns or {})}
        with _told_in_one_line():
            snippet.set_up(options, namespace)
            code = self.shell.transform_cell(statement)  # type: ignore[no-untyped-call]
            measured = snippet.time_statement(code, options, namespace)
        if options.give_back:
            return measured
        display(measured)  # type: ignore[no-untyped-call]
        return None


_TimeOp.time_op.__doc__ = f"{_TimeOp.time_op.__doc__}\n{_TimeOp._parser.format_help()}"


def _split(line: str, parser: argparse.ArgumentParser) -> tuple[list[str], str]:
    """Split a line into the options at its beginning, and the unchanged rest.

    Only the options are quoted as in a shell: a statement has its own quotes.

    Raises:
        UsageError: a quote in the options is not closed.
    """
    actions = parser._option_string_actions
    text = io.StringIO(line)
    words = shlex.shlex(text, posix=True)
    words.whitespace_split = True
    words.commenters = ""
    given: list[str] = []
    rest = line.strip()
    wants_value = False
    while wants_value or rest.startswith("-"):
        try:
            word = words.get_token()
        except ValueError as error:
            raise UsageError(f"the options have invalid quotes ({error}): {line.strip()}") from None
        rest = line[text.tell() :].strip()
        if word is None or (word == "--" and not wants_value):
            break
        given.append(word)
        action = actions.get(word)
        wants_value = not wants_value and action is not None and action.nargs != 0
    return given, rest


@contextlib.contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Keep the traceback of errors that statements raise; report all others in one line."""
    try:
        yield
    except InputError as error:
        raise UsageError(str(error)) from error
    except (ValueError, RuntimeError, OSError) as error:
        if raised_by(error):
            raise
        raise UsageError(one_line(error)) from error
