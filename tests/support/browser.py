"""Real Chromium on pages that a server answers: links, requests, what the browser refused, and axe-core.

axe-core comes with the package ``axe-playwright-python``; it is run from outside the page, so that the page's
own policy stays as it is. Nothing but the server under test is asked: any other request is recorded and
stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Response,
    Route,
    sync_playwright,
)

from tests.support.chromium import CHROMIUM

_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")
_TIMEOUT_MS = 60_000
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


@dataclass
class BrowserVisit:
    """A person at ``base``. ``foreign`` are requests that were not for it, ``complaints`` what the browser
    wrote to its console: errors of scripts, and what the policy of a page refused."""

    base: str
    context: BrowserContext
    page: Page
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Response:
        """Open ``path``; the answer, after redirects."""
        found = self.page.goto(urljoin(self.base, path), wait_until="load")
        assert found is not None
        return found

    def here(self) -> str:
        """Path and query of the page that is shown."""
        parts = urlsplit(self.page.url)
        return parts.path + (f"?{parts.query}" if parts.query else "")

    def links(self) -> list[str]:
        """Path and query of every link of the page to this server, once, in order."""
        found = self.page.eval_on_selector_all("a[href]", "all => all.map(each => each.href)")
        own = (urlsplit(each) for each in found if each.startswith(self.base))
        return list(dict.fromkeys(each.path + (f"?{each.query}" if each.query else "") for each in own))

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2.2 AA: rule and place."""
        result = Axe().run(self.page, options=WCAG).response
        return [
            f"{each['id']}: {each['help']}: {node['target']} {node['html'][:160]}"
            for each in result["violations"]
            for node in each["nodes"]
        ]

    def shot(self, file: Path) -> Path:
        """A picture of the whole page."""
        self.page.screenshot(path=file, full_page=True)
        return file


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium of the system, without a screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(
    browser: Browser,
    base: str,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    script: bool = True,
    headers: dict[str, str] | None = None,
) -> Iterator[BrowserVisit]:
    """A new person with an empty profile, at ``base`` (scheme, host and port)."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
        extra_http_headers=headers or {},
        reduced_motion="reduce",
        ignore_https_errors=True,  # servers of tests have an authority of their own
    )
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    found = BrowserVisit(base, context, page)

    def only_here(route: Route) -> None:
        if route.request.url.startswith(base):
            route.continue_()
            return
        found.foreign.append(route.request.url)
        route.abort()

    def complain(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    context.route("**/*", only_here)
    page.on("console", complain)
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    try:
        yield found
    finally:
        context.close()
