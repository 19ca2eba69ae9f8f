"""The viewer shows which parts of a picture carry a label, for one model or two."""

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.backend import picture
from tests.browser.conftest import file, page_of
from tests.processes import wait_for

DRAWN = "image => image.complete && image.naturalWidth > 0"


def open_picture(page: Page) -> None:
    page.set_input_files("#files", file("blue.png", picture("blue")))
    expect(page.locator(".card[data-state=ok]")).to_have_count(1)
    page.get_by_role("button", name="Open blue.png").click()


def test_map_lies_over_the_picture_as_strong_as_wanted(page: Page):
    open_picture(page)
    expect(page.locator("#viewer-picture")).to_be_visible()
    page.get_by_role("button", name="Why?").click()
    heat = page.locator("#viewer-maps .heat")
    expect(heat).to_have_count(1)
    expect(page.locator("#viewer-picture")).to_be_hidden()
    expect(page.locator(".map strong")).to_contain_text("blue, 90.0%")
    # Each heat map replaces the previous one.
    wait_for(lambda: heat.evaluate(DRAWN))
    original = wait_for(lambda: heat.bounding_box() and page.locator("#viewer-maps img:not(.heat)").bounding_box())
    wait_for(lambda: heat.bounding_box() == pytest.approx(original, abs=1))
    page.locator("#viewer-heat").fill("0")
    expect(heat).to_have_css("opacity", "0")


@pytest.mark.long
def test_map_stays_with_its_picture(page: Page):
    """No part of a plain picture matters."""
    page.set_input_files("#files", [file(f"{each}.png", picture(each)) for each in ("blue", "red")])
    expect(page.locator(".card[data-state=ok]")).to_have_count(2)
    page.get_by_role("button", name="Open blue.png").click()
    page.get_by_role("button", name="Why?").click()
    expect(page.locator("#viewer-maps .map")).to_have_count(1)
    expect(page.locator("#viewer").get_by_text("Explaining")).to_have_count(0)
    expect(page.locator(".map .nothing")).to_contain_text("No part matters")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#viewer-maps")).to_be_hidden()
    expect(page.locator("#viewer-picture")).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("#viewer-maps .map")).to_have_count(1)
    expect(page.get_by_role("button", name="Why?")).to_have_count(0)


def test_refused_explanation_says_why(context: BrowserContext, monkeypatch):
    monkeypatch.setattr("gateway.plugins.media.explain_route.MAX_MASKED_BYTES", 2**20)
    with page_of(context) as page:
        open_picture(page)
        page.get_by_role("button", name="Why?").click()
        expect(page.locator("#viewer .problem")).to_contain_text("ask for fewer masks")
        expect(page.get_by_role("button", name="Why?")).to_be_enabled()
