"""Exit codes of the commands; `convtime --help` and docs/reference/exit-codes.md show this list."""

DONE = 0
FOUND = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

MEANINGS: dict[int | str, str] = {
    DONE: "done",
    FOUND: "found what --fail-on names, or a check of `convtime doctor` failed",
    BAD_INPUT: "bad input, or code that failed; a line on standard error says what",
    INTERRUPTED: "interrupted by Ctrl-C",
    "CODE": "what --uncertain names: nothing of --fail-on was found, but a verdict is uncertain",
}
