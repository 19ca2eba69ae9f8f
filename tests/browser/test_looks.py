"""Accessibility: at several widths, light and dark, axe finds no violation, and no element is wider than the window."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.backend import picture
from tests.browser.conftest import PATIENCE_MS, check, file, open_panels

LOOKS = [(390, "dark"), pytest.param((1280, "light"), marks=pytest.mark.long)]
"""Windows' widths and colour schemes: a telephone's, and a desktop's. All but one are for `make test-long`."""
OTHERS = ((390, "light"), (820, "dark"), (820, "light"), (1280, "dark"))
OTHER_LOOKS = [pytest.param(look, marks=pytest.mark.long) for look in OTHERS]
FILES = [
    *(file(f"{colour}.png", picture(colour)) for colour in ("blue", "green", "red")),
    file("a-very-long-name-without-any-space-in-it-that-has-to-fit.jpg", b"x"),
]


@pytest.fixture(params=LOOKS + OTHER_LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def page(request: pytest.FixtureRequest, browser: Browser):
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
        permissions=["camera"],
    )
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def test_axe_finds_nothing_on_the_page(page: Page, service: str):
    page.goto(service)
    expect(page.locator("#model option")).to_have_count(4)
    expect(page.locator("#example-answer .label").first).to_have_text("red")
    check(page)
    open_panels(page)
    page.select_option("#compare", "moods")
    page.set_input_files("#files", FILES)
    expect(page.locator("#tally")).to_have_text("3 classified, 1 failed")
    page.locator(".chip").first.click()
    expect(page.locator(".card")).to_have_count(1)
    page.locator(".chip").first.click()
    page.locator("#least").fill("0.7")
    expect(page.locator(".unsure")).to_have_count(1)
    check(page)
    page.locator(".thumb").first.click()
    page.get_by_role("button", name="All labels").first.click()
    expect(page.get_by_label("Find a label")).to_be_visible()
    check(page)
    for _ in range(2):
        page.get_by_role("button", name="Why?").first.click()
    expect(page.locator("#viewer-maps .map")).to_have_count(2)
    check(page)


@pytest.mark.parametrize("page", LOOKS, ids=str, indirect=True)
def test_axe_finds_nothing_on_the_camera(page: Page, service: str):
    page.goto(f"{service}/?tab=camera")
    expect(page.locator("#model option")).to_have_count(4)
    check(page)
    page.click("#camera-start")
    expect(page.locator("#camera-label")).to_have_text(re.compile("blue|red"))
    check(page)
    page.click("#camera-stop")
    expect(page.locator("#camera-start")).to_be_visible()


def test_axe_finds_nothing_on_the_page_of_the_client(page: Page, service: str):
    page.goto(f"{service}/client/")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    check(page)


def test_axe_finds_nothing_on_the_documentation(page: Page, service: str):
    page.goto(f"{service}/docs")
    expect(page.locator("#operations-classify-predict")).to_be_visible()
    check(page)
    page.locator("#operations-classify-predict .opblock-summary-control").click()
    expect(page.get_by_role("button", name="Execute")).to_be_visible()
    check(page)
