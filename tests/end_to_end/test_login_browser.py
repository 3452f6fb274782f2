"""Logging in and out in a real browser: its own cookies, its own headers, the policy of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from gpucost.domain.scope import EVERYTHING
from tests.api.pages.login_sites import ANSWER, TEAM, Site, as_new, key, sites
from tests.support.browser import BrowserVisit, running_browser, visit
from tests.support.chromium import needs_chromium

pytestmark = [pytest.mark.slow, pytest.mark.chromium, needs_chromium]
__all__ = ["sites"]

LEAD = {"groups": ["gpu-leads", "gpu-research-members"]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


def log_in(page: Page, way: str) -> None:
    if way == "issuer":
        page.click("text=Log in at")
    else:
        page.fill("#key", key("ada"))
        page.click("button.main")
    page.wait_for_load_state()


def kept(person: BrowserVisit) -> dict[str, dict[str, object]]:
    """The cookies that the browser has of us, by name."""
    found = person.context.cookies()
    return {each["name"]: dict(each) for each in found if "gpucost" in each["name"]}


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("way", ["issuer", "key"])
@pytest.mark.parametrize("name", ["tls", "plain"])
def test_a_person_logs_in_answers_a_finding_and_logs_out(
    name: str, way: str, script: bool, sites: dict[str, Site], browser: Browser
) -> None:
    site = as_new(sites[name])
    site.issuer.person = LEAD
    with visit(browser, site.url, script=script) as person:
        page = person.page
        person.go(TEAM)
        assert person.here().startswith("/login?next=")
        log_in(page, way)
        assert person.here() == TEAM
        session = kept(person)[f"{site.prefix}gpucost"]
        assert (session["httpOnly"], session["secure"], session["sameSite"], session["path"]) == (
            True,
            site.is_secure,
            "Lax",
            "/",
        )
        person.go(ANSWER.rpartition("/")[0])
        before = len(site.ledger.finding_events(EVERYTHING, 1))
        form = page.locator(f'form[action="{ANSWER}"]')
        form.locator("[name=note]").fill("seen in a browser")
        form.locator("button").click()
        page.wait_for_load_state()
        events = site.ledger.finding_events(EVERYTHING, 1)
        assert [each.detail for each in events[before:]] == ["seen in a browser"]
        page.click("text=Log out")
        page.wait_for_load_state()
        assert person.here() == "/login"
        assert f"{site.prefix}gpucost" not in kept(person)
        person.go(TEAM)
        assert person.here().startswith("/login?next=")
        assert person.foreign == []
        assert person.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everybody_can_use_the_log_in(dark: bool, sites: dict[str, Site], browser: Browser) -> None:
    site = as_new(sites["tls"])
    with visit(browser, site.url, width=500, dark=dark) as person:
        person.go("/login")
        assert person.violations() == []
        person.page.fill("#key", "gpc_ada_wrong")
        person.page.keyboard.press("Enter")
        person.page.wait_for_load_state()
        assert "not accepted" in person.page.inner_text("[role=alert]")
        assert person.violations() == []
        wide = person.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert wide is False
        person.shot(site.folder / f"login-{dark}.png")
