"""Pages in the system's Chromium: what they log, what they request, and what axe-core finds."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WCAG_21_AA = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


def find() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window; playwright's own is not downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find())
        yield browser
        browser.close()


@dataclasses.dataclass
class Opened:
    """A page of a file; errors and warnings of the console, exceptions and dialogs since it was
    opened; and the addresses of requests other than the file's own.
    """

    page: Any
    problems: list[str] = dataclasses.field(default_factory=list)
    requests: list[str] = dataclasses.field(default_factory=list)

    def violations(self, **rules: bool) -> list[str]:
        """What axe-core finds against WCAG 2.1 AA, with the first element of each finding; `rules`
        are left out or added by name, with an underscore for a dash.
        """
        from axe_playwright_python.sync_playwright import Axe

        switched = {name.replace("_", "-"): {"enabled": on} for name, on in rules.items()}
        options = {"runOnly": [*_WCAG_21_AA], "resultTypes": ["violations"], "rules": switched}
        found = Axe().run(self.page, options=options).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found]


def opened(browser: Any, file: Path, **options: Any) -> Opened:
    """Opens a file and records what happens; options are those of playwright's new_page."""
    found = Opened(browser.new_page(**{"viewport": DESKTOP, **options}))
    address = file.absolute().as_uri()

    def log(message: Any) -> None:
        if message.type in ("error", "warning"):
            found.problems.append(message.text)

    def refuse(dialog: Any) -> None:
        found.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def request(one: Any) -> None:
        if one.url.partition("#")[0] != address:
            found.requests.append(one.url)

    found.page.on("console", log)
    found.page.on("pageerror", lambda error: found.problems.append(str(error)))
    found.page.on("dialog", refuse)
    found.page.on("request", request)
    found.page.goto(address)
    return found
