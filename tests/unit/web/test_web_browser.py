"""The page in a real browser. With HADAR_PAGE_SCREENSHOTS=FOLDER what it shows is kept there."""

import os
from pathlib import Path

import pytest
from page_service import HOSTILE, ME, OTHERS, Relay, axe, browser, serving, with_accounting

from benchmarks.page.world import PretendController
from slurm_hadar.web.what_if import LONGEST_S

PROXIED = f'[web]\nproxy_user = "{ME}"\n'
VIEWS = {
    "queue": "",
    "nodes": "nodes",
    "timeline": "timeline",
    "job": "jobs/1002",
    "what-if": "what-if?policy=fifo",
    "report": "report",
}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "dark-phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}

EXAMINED = ("light", "dark-phone")
"""Each colour scheme and each width once: in these axe-core looks for barriers. It reads each
element of a page, so of the large site the first one is examined: its pages are the same with more
rows."""


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


def pretend(folder, jobs, nodes, **more):
    world = PretendController(folder, jobs, nodes, **more)
    world.users, world.names = OTHERS, HOSTILE
    return world


@pytest.fixture(scope="module", params=[12, 5000])
def site(request, tmp_path_factory):
    jobs = request.param
    nodes = {12: 6, 5000: 2000}[jobs]
    folder = tmp_path_factory.mktemp("site")
    accounting = with_accounting(folder, (1, ME), (2, HOSTILE[0]))
    world = pretend(folder, jobs, nodes, more=accounting)
    with world, serving(world, "--port", "0") as url:
        world.moved("1002")
        yield world, jobs, url


class Tab:
    """A page of the browser that collects what goes wrong in it."""

    def __init__(self, chromium, look="light", **more):
        self._context = chromium.new_context(**LOOKS[look], **more)
        self.page = self._context.new_page()
        self.page.set_default_timeout(240_000)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        self.page.on(
            "console",
            lambda message: self.faults.append(message.text) if message.type == "error" else None,
        )

    def looks(self, look):
        """From the next page on."""
        self.page.emulate_media(color_scheme=LOOKS[look]["color_scheme"])
        self.page.set_viewport_size(LOOKS[look]["viewport"])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._context.close()
        if kind is None:
            assert not self.faults


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_shows_what_there_is_and_fits_the_screen(chromium, site, view):
    world, jobs, url = site
    kept = os.environ.get("HADAR_PAGE_SCREENSHOTS")
    with Tab(chromium) as tab:
        for look in LOOKS if jobs == 12 or kept else EXAMINED:
            tab.looks(look)
            # What is three minutes old is shown as stale.
            world.tick()
            tab.page.goto(url + VIEWS[view])
            _shows(tab.page, jobs, view, look)


def _shows(page, jobs, view, look):
    titles = {"job": "Job 1002", "what-if": "What if"}
    assert page.locator("h1").inner_text() == titles.get(view, view.title())
    assert "Controller acts" in page.locator("#state").inner_text()
    if view == "queue":
        assert page.locator("#rows tr").count() == min(jobs, 100)
        assert page.locator("#job-1000").get_by_text(HOSTILE[0]).is_visible()
        assert page.locator("#pages").inner_text().startswith(f"{jobs:,} jobs")
    if view == "nodes":
        assert page.locator("#nodes > li").count() == (6 if jobs == 12 else 250)
        assert page.locator("#node-v1 .gpu").count() == 4
        assert "1000 ×2" in page.locator("#node-v1").inner_text()
    if view == "timeline":
        assert page.locator("#day svg a").count() >= 9
        assert page.locator("#moves tbody tr").count() == 1
    if view == "job":
        assert "v100" in page.locator("#job-speed").inner_text()
        assert "moved" in page.locator("#job-moves").inner_text()
        assert "samples/s" in page.locator("#job-now").inner_text()
    if view == "report":
        # It comes by itself.
        page.locator("#report").get_by_text(f"acct-{HOSTILE[0]}").first.wait_for()
    if view == "what-if" and jobs == 12:
        # It comes by itself when it is done: two simulations, one after the other.
        page.get_by_text("12 of 12").nth(1).wait_for(timeout=1000 * LONGEST_S)
        assert page.locator("#what-if tbody").first.locator("tr").count() == 2
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    folder = os.environ.get("HADAR_PAGE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(exist_ok=True, parents=True)
        page.screenshot(path=Path(folder) / f"{view}-{jobs}-{look}.png")
    if look in EXAMINED[: 2 if jobs == 12 else 1]:
        no_serious_violation(page)


def no_serious_violation(page):
    source = axe()
    if source is None:
        pytest.skip("axe-core is missing: npm install --no-save --prefix .venv axe-core")
    page.evaluate(source)
    found = page.evaluate("axe.run().then(done => done.violations)")
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not serious, [(one["id"], one["nodes"][0]["html"]) for one in serious]


def test_an_update_changes_the_page_in_place_and_keeps_the_focus(chromium, tmp_path):
    world = pretend(tmp_path, 100, 60)
    with world, serving(world, "--port", "0") as url, Tab(chromium) as tab:
        page = tab.page
        page.goto(f"{url}?state=PENDING")
        first = page.locator("#rows tr").first
        id_ = first.get_attribute("id")
        shown = page.locator("#rows tr").count()
        kept = page.locator("#rows tr").last
        kept.locator("a").focus()
        kept.evaluate("row => { window.focused = row.id; document.title = 'not loaded again'; }")
        world.tick()
        page.locator(f"#{id_}").wait_for(state="detached")
        assert 0 < page.locator("#rows tr").count() < shown
        assert page.evaluate("document.activeElement.closest('tr').id === window.focused")
        assert page.title() == "not loaded again"
        world.stop()
        page.get_by_text("Stale since").wait_for()
        assert page.locator("#rows tr").count()
        world.start()
        world.tick()
        page.get_by_text("Controller acts").wait_for()
        page.keyboard.press("Control+Home")


def test_all_is_reached_by_the_keyboard_and_works_without_scripts(chromium, site):
    _, _, url = site
    with Tab(chromium, java_script_enabled=False) as tab:
        page = tab.page
        page.goto(url)
        page.keyboard.press("Tab")
        assert page.get_by_text("Skip to the content").is_visible()
        page.get_by_role("link", name="Nodes").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/nodes")
        page.get_by_label("Colour by").select_option("type")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**colour=type**")
        assert page.locator("#node-v1 .gpu.t2").count() == 4
        page.get_by_role("link", name="Queue").click()
        page.get_by_label("Name or ID").fill("1001")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=1001**")
        assert page.locator("#rows tr").count() == 1
        page.get_by_role("link", name="1001").click()
        page.wait_for_url("**/jobs/1001")


def test_two_users_under_private_data_see_their_own(chromium, tmp_path):
    world = pretend(tmp_path, 12, 6, private=("jobs", "nodes"), more=PROXIED)
    with world, serving(world) as path:
        for name, own, foreign in ((OTHERS[0][0], "1000", "1001"), (OTHERS[1][0], "1001", "1000")):
            with Relay(path, name) as relay, Tab(chromium) as tab:
                page = tab.page
                page.goto(f"{relay.url}?user=all")
                assert page.locator("#rows tr").count() == 4
                assert page.locator(f"#job-{own}").count() == 1
                assert page.locator(".me").inner_text() == name
                page.goto(f"{relay.url}nodes")
                assert page.locator(".node").count() == 0
                assert page.get_by_text("PrivateData").is_visible()
                page.goto(f"{relay.url}jobs/{foreign}")
                assert page.get_by_text(f"no job {foreign} that you may see").is_visible()
                tab.faults = [one for one in tab.faults if "404" not in one]


def test_a_job_and_its_nodes_are_found_with_the_tab_key_alone(chromium, site):
    _, _, url = site
    with Tab(chromium, "phone") as tab:
        page = tab.page
        page.goto(url)

        def tab_to(text):
            for _ in range(60):
                page.keyboard.press("Tab")
                found = page.evaluate(
                    "() => [document.activeElement.textContent.trim(),"
                    " getComputedStyle(document.activeElement).outlineStyle]"
                )
                if found[0] == text:
                    assert found[1] == "solid"
                    # What has the focus comes onto the screen.
                    page.wait_for_function(
                        "() => { const box = document.activeElement.getBoundingClientRect();"
                        " return box.width > 0 && box.right <= innerWidth + 1 && box.bottom > 0"
                        " && box.top < innerHeight; }"
                    )
                    return
            raise AssertionError(f"no Tab leads to {text}")

        tab_to("1000")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/1000")
        tab_to("Nodes")
        page.keyboard.press("Enter")
        page.wait_for_url("**/nodes")
        tab_to("1001")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/1001")
