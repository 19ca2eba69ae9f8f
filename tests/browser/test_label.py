"""The page to label logged images: keys, search, skip, undo, progress, curves, and two people at once."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from gateway_plugins.keys.key_file import add_key
from gateway_predictions.reader import LogReader
from tests.browser.backend import colours_backend, picture
from tests.browser.conftest import check, enter_key
from tests.gateway_predictions.logged import EVERYTHING, rows
from tests.services import stream_service

SETTINGS = {**EVERYTHING, "log_predictions_images": True, "label_queue": True}
IMAGES = 8


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[str]:
    """A service whose log has IMAGES different images; red ones are the most uncertain."""
    with stream_service(colours_backend(), model="colours", log_predictions=str(tmp_path), **SETTINGS) as (address, _):
        url = f"http://{address}"
        for number in range(IMAGES):
            colour = ("red", "blue", "green")[number % 3]
            files = {"files": ("a.png", picture(colour, number), "image/png")}
            assert httpx.post(f"{url}/predict", files=files, timeout=60).status_code == 200
        rows(tmp_path, IMAGES)
        yield url


def open_queue(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(f"{url}/label")
    expect(page.locator("#work")).to_be_visible()
    return page


def shown(page: Page) -> str:
    """The address of the picture on the page, which differs for each image."""
    return page.locator("#picture").get_attribute("src") or ""


def next_after(page: Page, before: str) -> None:
    expect(page.locator("#picture")).not_to_have_attribute("src", before)


def test_images_are_labelled_by_keys_and_search(context: BrowserContext, logged: str, tmp_path: Path):
    page = open_queue(context, logged)
    expect(page.locator("#tally")).to_have_text(f"0 labelled; {IMAGES} wait in the log")
    best = page.locator("#choices .choice").first.text_content()
    before = shown(page)
    page.keyboard.press("1")
    next_after(page, before)
    expect(page.locator("#tally")).to_contain_text("1 of them now")

    before = shown(page)
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("colour 39")
    page.keyboard.press("Enter")
    next_after(page, before)
    # What was chosen lately has a key.
    expect(page.locator("#choices .choice").last).to_have_text("colour 39")
    before = shown(page)
    page.keyboard.press("0")
    next_after(page, before)
    found = rows(tmp_path, 3, "feedback")
    assert [each["label"] for each in found] == [best, "colour 39", None]
    assert len({each["request_id"] for each in found}) == 3


def test_skipped_and_labelled_images_come_back_by_undo(context: BrowserContext, logged: str, tmp_path: Path):
    page = open_queue(context, logged)
    first = shown(page)
    page.keyboard.press("s")
    next_after(page, first)
    second = shown(page)
    page.keyboard.press("1")
    next_after(page, second)
    page.keyboard.press("u")
    expect(page.locator("#picture")).to_have_attribute("src", second)
    page.keyboard.press("u")
    expect(page.locator("#picture")).to_have_attribute("src", first)
    expect(page.locator("#undo")).to_be_disabled()
    given, taken = rows(tmp_path, 2, "feedback")
    assert (given["withdrawn"], taken["withdrawn"]) == (False, True)
    assert LogReader(str(tmp_path)).labelled() == []
    page.keyboard.press("s")
    expect(page.locator("#picture")).to_have_attribute("src", second)


@pytest.mark.long
def test_two_people_label_different_images_until_none_is_left(browser: Browser, logged: str, tmp_path: Path):
    people = [browser.new_context() for _ in range(2)]
    pages = [open_queue(context, logged) for context in people]
    for number in range(IMAGES):
        page = pages[number % 2]
        if page.locator("#work").is_hidden():
            page = pages[1 - number % 2]
        before = shown(page)
        page.keyboard.press("1")
        expect(page.locator(f'#picture[src="{before}"]:visible')).to_have_count(0)
    given = rows(tmp_path, IMAGES, "feedback")
    assert len({each["request_id"] for each in given}) == IMAGES
    for page in pages:
        expect(page.locator("#empty")).to_be_visible()
    for context in people:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), pytest.param(1440, "light", marks=pytest.mark.long)])
def test_axe_finds_nothing(browser: Browser, logged: str, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    curve = [
        {"day": f"2026-01-0{day}", "images": 40, "value": 0.8 - day / 50, "low": 0.6, "high": 0.9, "chance": 0.1}
        for day in range(1, 6)
    ]
    overview = {"labelled": 3, "waiting": 5, "accuracy": curve, "reported": curve, "drift": curve}
    page.route("**/label/overview*", lambda route: route.fulfill(json=overview))
    page.goto(f"{logged}/label")
    expect(page.locator("#work")).to_be_visible()
    expect(page.locator("#accuracy svg, #drift svg")).to_have_count(2)
    page.locator("#accuracy summary").click()
    expect(page.locator("#accuracy tr")).to_have_count(6)
    check(page)
    context.close()


def test_key_is_asked_for_where_keys_are_required(context: BrowserContext, tmp_path: Path):
    keys = tmp_path / "keys"
    key = add_key(keys, "labellers")
    settings = {**SETTINGS, "log_predictions": str(tmp_path / "log"), "api_keys_file": keys}
    with stream_service(colours_backend(), model="colours", **settings) as (address, _):
        for path in ("overview?model=colours", "image?model=colours&path=images/a/b.png"):
            assert httpx.get(f"http://{address}/label/{path}", timeout=60).status_code == 401
        assert httpx.post(f"http://{address}/label/next?model=colours", timeout=60).status_code == 401
        page = context.new_page()
        page.goto(f"http://{address}/label")
        enter_key(page, key)
        expect(page.locator("#empty")).to_be_visible()


def test_service_without_the_queue_says_what_to_set(page: Page, service: str):
    page.goto(f"{service}/label")
    expect(page.locator("#notice")).to_have_text(re.compile("GATEWAY_LABEL_QUEUE=true, GATEWAY_LOG_PREDICTIONS_IMAGES"))
    answer = httpx.get(f"{service}/label/image", params={"model": "colours", "path": "images/../x"}, timeout=60)
    assert answer.status_code == 404
