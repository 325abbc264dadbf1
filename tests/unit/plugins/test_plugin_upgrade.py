"""The Lua files of two releases side by side, as in the middle of an upgrade.

Those of the release before gave a waiting job a begin time, a lease.
"""

import itertools
import json
import shutil
import time

import pytest
from test_plugin_check import WITH_LEASE
from test_plugin_files import add, do, files, site  # noqa: F401
from test_plugin_fragments import filtered, installed, submit

from slurm_hadar.plugins import changes

LUA = ("cli_filter.lua", "declaration.lua", "help.lua", "job_submit.lua", "site.lua")
SUBSETS = [set(names) for n in range(len(LUA) + 1) for names in itertools.combinations(LUA, n)]


def old_site(exchange):
    """The site.lua of the release before, where a controller in act mode is alive."""
    beat = {"version": 1, "mode": "act", "time": time.time(), "interval_s": 10.0}
    (exchange / "heartbeat.json").write_text(json.dumps(beat))
    return (WITH_LEASE / "site.lua").read_text().replace("/shared/x", str(exchange))


@pytest.mark.parametrize("old", SUBSETS, ids=lambda old: "+".join(sorted(old)) or "none")
def test_files_of_two_releases_side_by_side_break_no_submit(tmp_path, old):
    """Half an upgrade, in any order: a job is managed, or it is as its owner typed it."""
    folder = installed(tmp_path)
    for name in old:
        shutil.copy(WITH_LEASE / name, folder / name)
    if "site.lua" in old:
        (folder / "site.lua").write_text(old_site(tmp_path))
    for fragment, kind in ((submit, "job_submit.lua"), (filtered, "cli_filter.lua")):
        found = fragment(tmp_path, folder)
        fields, begin = found["fields"], {"begin", "begin_time"} & set(found["set"])
        assert found["code"] == 0
        # Our settings are not enough for old files; a job that they leave alone is an ordinary one.
        needs = {"help.lua", *({"cli_filter.lua"} if kind == "cli_filter.lua" else ())}
        if "site.lua" not in old and old & needs:
            assert found["set"] == []
            continue
        assert "[hadar1 model=m types=v100 checkpoint=yes" in fields["comment"]
        # A begin time takes all three old files; no job says that it has one without it.
        assert bool(begin) is ({"site.lua", "help.lua", kind} <= old)
        assert ("lease=yes" in fields["comment"]) is bool(begin and "declaration.lua" in old)


def test_an_upgrade_file_by_file_manages_every_job_and_ends_the_begin_times(
    tmp_path,
    site,  # noqa: F811
):
    """In the order in which ``hadar plugins install`` replaces them."""
    do(add(site, "job-submit", "cli-filter", untype=True))
    new, folder = files(site), site / "hadar"
    for name in LUA:
        shutil.copy(WITH_LEASE / name, folder / name)
    (folder / "site.lua").write_text(old_site(tmp_path))
    plan = [one for one in add(site, "job-submit", "cli-filter", untype=True).changes if one.needed]
    assert sorted(change.path.name for change in plan) == sorted(LUA)
    done = set()
    for change in [None, *plan]:
        if change:
            changes.apply([change])
            done.add(change.path.name)
        for fragment in (submit, filtered):
            found = fragment(tmp_path, folder)
            assert "[hadar1 model=m" in found["fields"]["comment"], done
            begin = {"begin", "begin_time"} & set(found["set"])
            assert bool(begin) is ("help.lua" not in done), done
    assert files(site) == new
