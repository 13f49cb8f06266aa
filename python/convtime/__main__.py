"""`python -m convtime` is the command `convtime`."""

from convtime.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
