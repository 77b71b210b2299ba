"""The page of a run in a real browser: what it shows, how it is used, and that data stays data.

The pages come from the command itself, over runs of another process. Nothing here uses an event loop: the
browser's driver has this thread's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.programs import reported
from tests.waiting import until

PROGRAM = Path(reported.__file__)
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
PATIENCE_MS = 30_000  # a limit for a machine that has hung


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page for each sort of run."""
    made = tmp_path_factory.mktemp("reports")
    killed = subprocess.run([sys.executable, PROGRAM, made], check=False, timeout=120)
    assert killed.returncode == -9  # the last of its runs dies on purpose
    for run_id, code in {"odd": 0, "many": 0, "damaged": 6, "dying": 0}.items():
        command = [sys.executable, "-m", "durable_core.cli", "report", run_id, "--store", "sqlite:///runs.db"]
        assert subprocess.run(command, cwd=made, check=False, timeout=120).returncode == code, run_id
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's, without what containers lack."""
    names = ("chromium", "chromium-browser", "google-chrome", MAC)
    program = next(filter(None, map(shutil.which, names)), None)
    assert program, "no Chromium is here: scripts/system_packages.sh installs it"
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, folder: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page, ready; it must ask for nothing and complain of nothing."""
    run_id, options = getattr(request, "param", ("odd", {}))
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: complaints.append(sent.url))
    page.goto((folder / f"{run_id}.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    assert complaints == [(folder / f"{run_id}.html").as_uri()]  # the page itself, and nothing else
    context.close()


def of(run_id: str, **options: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", [(run_id, options)], indirect=True, ids=[run_id])


def names(page: Page) -> list[str]:
    return page.locator(".row .name").evaluate_all("found => found.map(one => one.title)")


def test_the_outcome_and_what_to_do_about_it_come_first(opened: Page) -> None:
    assert opened.locator("h1").inner_text() == "odd"
    assert opened.locator(".badge").inner_text() == "Failed"
    notice = opened.locator(".notice").first
    assert "ValueError" in notice.inner_text()
    assert "durable show odd --step refuse" in notice.inner_text()
    assert notice.locator("a").all_inner_texts() == ["refuse"]
    facts = opened.locator(".facts").inner_text()
    assert re.search(r"Steps\s+12\s+1 failed", facts), facts


def test_steps_stand_in_the_tree_of_their_branches_with_their_attempts(opened: Page) -> None:
    assert names(opened) == [
        "hostile", "flaky", "naps", "naps/nap", "naps/nap#2", "naps/nap#3", "naps/nap#4",
        "naps#2", "naps#2/nap", "naps#2/nap#2", "naps#2/nap#3", "naps#2/nap#4", "item", "refuse",
    ]  # fmt: skip
    retried = opened.locator(".row", has=opened.locator("[title=flaky]"))
    assert "re-run" in retried.inner_text()
    assert retried.locator(".lane i").count() == 3  # each attempt has a bar
    levels = opened.locator(".row[aria-level]").evaluate_all("found => found.map(one => one.ariaLevel)")
    assert levels[2:5] == ["1", "2", "2"]


def test_a_step_is_shown_with_all_that_is_known_of_it(opened: Page) -> None:
    opened.locator("[title=flaky]").click()
    told = opened.locator("#details").inner_text()
    for part in ("flaky", "committed, re-run", "Idempotency key", "Earlier attempts", "ERROR"):
        assert part in told
    opened.locator("[title=refuse]").click()
    told = opened.locator("#details").inner_text()
    assert "Traceback" in told
    assert reported.OWNED in told
    opened.keyboard.press("Escape")
    assert opened.locator("#details").is_hidden()


def test_filters_search_and_order_choose_the_rows(opened: Page) -> None:
    found = opened.locator("#found")
    assert found.inner_text() == "12 steps"
    opened.get_by_role("button", name="failed 1").click()
    assert names(opened) == ["refuse"]
    assert found.inner_text() == "1 step of 12"
    opened.get_by_role("button", name="re-run 1").click()
    assert names(opened) == ["flaky", "refuse"]
    opened.get_by_role("button", name="failed 1").click()
    opened.get_by_role("button", name="re-run 1").click()
    opened.keyboard.press("/")
    opened.keyboard.type("NAP#4")
    assert names(opened) == ["naps", "naps/nap#4", "naps#2", "naps#2/nap#4"]
    opened.locator("#search").fill("owned")  # in an output, and in an error
    assert names(opened) == ["hostile", "refuse"]
    opened.locator("#search").fill("there is no such thing")
    assert "No step is like that." in opened.locator("#rows").inner_text()
    opened.keyboard.press("Escape")
    opened.locator("#order").select_option("largest")
    assert names(opened)[:2] == ["naps#2/nap#4", "naps#2/nap#3"]
    opened.locator("#order").select_option("attempts")
    assert names(opened)[0] == "flaky"


def test_everything_can_be_reached_by_the_keyboard(opened: Page) -> None:
    def here() -> str:
        found = opened.evaluate(
            "document.getElementById(rows.getAttribute('aria-activedescendant')).innerText"
        )
        return str(found).split("\n")[0].strip("▼▶\n ")

    opened.locator("#rows").focus()
    opened.keyboard.press("End")
    assert here() == "refuse"
    opened.keyboard.press("Home")
    for _ in range(2):
        opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowLeft")
    assert "naps/nap" not in names(opened)
    assert opened.locator(".row.here").get_attribute("aria-expanded") == "false"
    opened.keyboard.press("ArrowRight")
    assert "naps/nap" in names(opened)
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("Enter")
    assert opened.locator("#details h3").inner_text() == "naps/nap"
    opened.keyboard.press("Escape")
    assert opened.evaluate("document.activeElement.id") == "rows"


def test_a_link_to_a_step_brings_it_into_view_whatever_is_filtered(opened: Page) -> None:
    opened.locator("#search").fill("hostile")
    opened.locator(".ranking a").first.click()
    assert len(names(opened)) == 14
    chosen = opened.locator(".row[aria-selected=true] .name").get_attribute("title")
    assert (
        chosen
        == opened.locator("#details h3").inner_text()
        == opened.locator(".ranking a").first.inner_text()
    )


def test_a_map_tells_how_far_it_came_and_which_items_failed(opened: Page) -> None:
    card = opened.locator("article.card").inner_text()
    assert "31 of 31 items done, 1 failed" in card
    assert "KeyError" in card
    assert reported.OWNED in card  # the item's key


@pytest.mark.parametrize(
    "opened", [("odd", {}), ("damaged", {})], indirect=True, ids=["values", "damaged records"]
)
def test_what_comes_from_data_is_never_run(opened: Page) -> None:
    """In outputs, errors, keys, and in ids that only a damaged store can hold."""
    shown = set()
    for row in range(opened.locator(".row[data-at]:not(.scope)").count()):
        opened.locator(".row[data-at]:not(.scope)").nth(row).click()
        shown.add(opened.locator("#details h3").inner_text())
        assert opened.locator("#details img").count() == 0
    assert len(shown) >= 12
    assert opened.locator("img").count() == 0
    assert "owned" not in opened.title()
    assert opened.locator("script").count() == 2  # the data and the program


@of("damaged")
def test_damaged_records_are_marked_and_hide_nothing(opened: Page) -> None:
    assert "Damaged records" in opened.locator(".notice").first.inner_text()
    assert opened.get_by_role("button", name="corrupt 1").is_visible()
    assert opened.locator("#found").inner_text() == "20 steps"


@of("dying")
def test_a_step_in_doubt_is_marked_and_explained(opened: Page) -> None:
    assert opened.locator(".badge").inner_text() == "Running, abandoned"
    notices = opened.locator(".notice").all_inner_texts()
    assert "is dead" in notices[0]
    assert "1 step in doubt" in notices[1]
    assert "in doubt" in opened.locator(".row", has=opened.locator("[title=deadly]")).inner_text()
    assert opened.locator(".lane i.t-in-doubt").count() == 1


def test_ten_thousand_steps_are_few_elements_and_soon_there(browser: Browser, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    began = time.monotonic()
    page.goto((folder / "many.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    ready_s = time.monotonic() - began
    began = time.monotonic()
    page.locator("#search").fill("note#777")
    page.wait_for_function("found.textContent.startsWith('10 steps of')")
    found_s = time.monotonic() - began
    page.locator("#search").fill("")
    for at in (0, 3, 7, 10):
        page.evaluate(f"rows.scrollTop = rows.scrollHeight * {at} / 10")
        page.wait_for_timeout(50)
        assert 20 < page.locator(".row[data-at]").count() < 60
    assert page.evaluate("document.querySelectorAll('*').length") < 1_500
    assert names(page)[-1] == "notes#10/note#1000"
    sys.stdout.write(f"10,000 steps: ready in {ready_s:.2f} s, searched in {found_s:.2f} s\n")
    page.close()


@of("odd", color_scheme="dark")
def test_colours_follow_the_system_and_can_be_switched(opened: Page) -> None:
    def ground() -> str:
        return str(opened.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = ground()
    opened.get_by_role("button", name="Switch to light colours").click()
    assert ground() != dark
    assert max(map(int, re.findall(r"\d+", dark))) < 60
    opened.get_by_role("button", name="Switch to dark colours").click()
    assert ground() == dark


@of("odd", viewport={"width": 380, "height": 800})
def test_a_narrow_window_shows_the_same_without_scrolling_sideways(opened: Page) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") <= 380
    opened.locator("[title=flaky]").click()
    box = opened.locator("#details").bounding_box()
    assert box is not None
    assert (box["x"], box["width"]) == (0, 380)
    opened.get_by_role("button", name="Close the details").click()
    until(opened.locator("#details").is_hidden, "the details to close")


def test_without_scripts_the_outcome_is_told_all_the_same(browser: Browser, folder: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((folder / "odd.html").as_uri())
    assert "ValueError" in page.locator(".notice").first.inner_text()
    assert "scripts are switched off" in page.locator("#steps").inner_text()
    page.close()
