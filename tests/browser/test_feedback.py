"""The page sends feedback only to a service that logs predictions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Locator, Page, expect

from gateway_models.predictions.reader import LogReader
from tests.browser.backend import picture
from tests.browser.conftest import file, page_of
from tests.gateway_models.predictions.logged import EVERYTHING, rows, writing


def add(page: Page, *colours: str) -> None:
    page.set_input_files("#files", [file(f"{each}.png", picture(each)) for each in colours])
    expect(page.locator(".card[data-state=ok]")).to_have_count(len(colours))


@pytest.fixture
def logged(context: BrowserContext, tmp_path: Path) -> Iterator[Page]:
    with writing(), page_of(context, log_predictions=str(tmp_path), **EVERYTHING) as page:
        expect(page.locator("#model option")).to_have_count(4)
        yield page


def card(page: Page, name: str) -> Locator:
    return page.locator(".card", has_text=name)


def labels(folder: Path) -> dict[str, tuple[str | None, bool]]:
    """The feedback of each image, by its predicted label: the true label, and whether the prediction is right."""
    return {each.row["labels"][0]: (each.label, each.is_correct) for each in LogReader(str(folder)).labelled()}


def test_right_and_wrong_answers_are_reported_from_their_cards(logged: Page, tmp_path: Path):
    add(logged, "blue", "green", "red")
    card(logged, "blue.png").get_by_role("button", name="Right").click()
    expect(card(logged, "blue.png").locator(".said-verdict")).to_have_text("Right: blue")
    card(logged, "green.png").get_by_role("button", name="Wrong…").click()
    rest = card(logged, "green.png")
    expect(rest.get_by_label("Find the right label")).to_be_focused()
    rest.get_by_role("button", name="red", exact=True).click()
    expect(rest.locator(".said-verdict")).to_have_text("Labelled red")
    card(logged, "red.png").get_by_role("button", name="Wrong…").click()
    card(logged, "red.png").get_by_role("button", name="None of these").click()
    expect(card(logged, "red.png").locator(".said-verdict")).to_have_text("Reported as wrong")
    rows(tmp_path, 3, "feedback")
    rows(tmp_path, 3)
    assert labels(tmp_path) == {"blue": ("blue", True), "green": ("red", False), "red": (None, False)}


def test_any_label_is_found_by_its_text_and_undone(logged: Page, tmp_path: Path):
    add(logged, "blue")
    logged.get_by_role("button", name="Open blue.png").click()
    viewer = logged.locator("#viewer")
    viewer.get_by_role("button", name="Wrong…").click()
    find = viewer.get_by_label("Find the right label")
    find.fill("colour 39")
    expect(viewer.locator(".choices button")).to_have_text(["colour 39", "None of these"])
    assert Axe().run(logged).violations_count == 0
    find.press("Enter")
    expect(viewer.locator(".said-verdict")).to_have_text("Labelled colour 39")
    expect(card(logged, "blue.png").locator(".said-verdict")).to_have_text("Labelled colour 39")
    rows(tmp_path, 1, "feedback")
    rows(tmp_path, 1)
    assert labels(tmp_path) == {"blue": ("colour 39", False)}
    viewer.get_by_role("button", name="Undo").click()
    expect(viewer.get_by_role("button", name="Right")).to_be_visible()
    rows(tmp_path, 2, "feedback")
    assert labels(tmp_path) == {}


def test_feedback_is_sent_once_it_is_chosen_and_again_if_it_was_not_taken(logged: Page):
    add(logged, "blue")
    asked: list[str] = []
    logged.on("request", lambda request: asked.append(request.url))
    wrong = card(logged, "blue.png").get_by_role("button", name="Wrong…")
    wrong.click()
    expect(wrong).to_have_attribute("aria-expanded", "true")
    logged.keyboard.press("Escape")
    expect(logged.locator(".chooser")).to_have_count(0)
    expect(wrong).to_be_focused()
    assert not [url for url in asked if "feedback" in url]
    logged.route("**/feedback", lambda route: route.fulfill(status=503, json={}))
    logged.get_by_role("button", name="Right").click()
    expect(logged.locator(".verdict .problem")).to_have_text("Not reported. Try again.")
    logged.unroute("**/feedback")
    logged.get_by_role("button", name="Right").click()
    expect(logged.locator(".said-verdict")).to_have_text("Right: blue")
