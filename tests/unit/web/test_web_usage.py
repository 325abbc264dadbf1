"""The report of GPU use in the page: an operator's of all, everyone else's of their own jobs."""

import pytest
from page_service import ME, OTHERS, Relay, client, serving, with_accounting

from benchmarks.page.world import PretendController

FIRST, SECOND, _ = (name for name, _ in OTHERS)


@pytest.fixture
def site(tmp_path):
    """A page behind a proxy, and the arguments with which sacct was called, one call a line."""
    accounting = with_accounting(tmp_path, (1, FIRST), (2, SECOND), (3, SECOND))
    more = f'[web]\nproxy_user = "{ME}"\n{accounting}'
    world = PretendController(tmp_path, 12, 6, more=more)
    world.users = OTHERS
    with world, serving(world) as path:
        yield path, tmp_path / "asked"


def report(page):
    return page.get("api/v1/report").json()["result"]


def test_each_user_has_their_own_jobs_and_an_operator_has_all(site):
    path, asked = site
    for name, jobs, hours in ((FIRST, 1, 2.0), (SECOND, 2, 4.0), (ME, 3, 6.0)):
        with Relay(path, name) as relay, client(relay.url) as page:
            found = report(page)
            assert (found["total"]["jobs"], found["total"]["received_gpu_h"]) == (jobs, hours)
            names = {one["account"] for one in found["accounts"]}
            assert names == (
                {f"acct-{name}"} if name != ME else {f"acct-{FIRST}", f"acct-{SECOND}"}
            )
            text = page.get("report").text
            for user in (FIRST, SECOND):
                assert (f"acct-{user}" in text) == (name in (user, ME))
            assert ("your own jobs" in text) == (name != ME)
    calls = asked.read_text().splitlines()
    # Each was asked for once, also where the page came after the JSON.
    assert len(calls) == 3
    assert [" -a " in f" {one} " for one in calls] == [False, False, True]
    assert f"-u {FIRST} " in calls[0] and f"-u {SECOND} " in calls[1]


def test_where_slurm_keeps_no_accounts_the_page_says_so(site, tmp_path):
    path, _ = site
    (tmp_path / "bin" / "sacct").write_text("#!/bin/sh\necho storage is disabled >&2\nexit 1\n")
    with Relay(path, FIRST) as relay, client(relay.url) as page:
        answer = page.get("api/v1/report")
        assert answer.status_code == 503 and "keeps no accounting" in answer.json()["error"]
        shown = page.get("report")
        assert shown.status_code == 200 and "keeps no accounting" in shown.text
