"""``hadar report``: sums by account, from accounting, samples and the journal."""

import io
import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from math import inf

import pytest
from hand_made import config, job
from rich.console import Console

from slurm_hadar.controller.journal.entry import NOT_MEANT, Entry
from slurm_hadar.controller.journal.job_owners import StoredOwners
from slurm_hadar.controller.journal.sampled_use import DAY_S, SampledUse, SampledUses
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import account_usage
from slurm_hadar.controller.presentation.account_usage import RecordedUse, UsageWindow
from slurm_hadar.profiles.gpu_sampling import TrainingUse
from slurm_hadar.reports import usage as shown
from slurm_hadar.slurm.accounting import JobRun

H = 3600.0
DAY = 20_000
T = DAY * DAY_S
"""A midnight, UTC."""
WINDOW = UsageWindow(T, T + 24 * H)
SITE = config("[energy]\nco2_g_per_kwh = 400\n[backfill]\npartitions = ['idle']\n")


def run(job="1", account="phys", start_h=1.0, end_h=3.0, **more):
    usual = {
        "user": "ann", "partition": "gpu", "state": "COMPLETED", "submit_s": T + 0.5 * H,
        "queued_s": T + 0.5 * H, "gpus": 2, "asked_gpu_s": 2 * 4 * H,
    }  # fmt: skip
    start_s, end_s = T + start_h * H, T + end_h * H
    return JobRun(**{"job": job, "account": account, "start_s": start_s, "end_s": end_s,
                     **usual, **more})  # fmt: skip


def moved(job="1", at_h=3.0, **effect):
    details = {"gpus": {"v100": 1}, "from": {"k1": {"k80": 2}}, "restarts": 0}
    known = {"rate_before": 100.0, "rate_after": 400.0, "without_training_s": 30.0, "lost_s": 6.0}
    steps = (("requeued", T + at_h * H),)
    return Entry(1, job, "move", "asked", T + at_h * H - 5, T + at_h * H, details, "moved", steps,
                 effect={**known, **effect})  # fmt: skip


recorded = account_usage.recorded_move


def report(runs, known=None, window=WINDOW, site=SITE):
    return account_usage.usage(runs, known, window, site)


def test_hours_are_gpus_times_the_part_of_each_run_in_the_window():
    requeued = run(start_h=4.0, end_h=6.0, submit_s=T + 3 * H, queued_s=T + 3.5 * H, gpus=1)
    before = run("2", "chem", start_h=-5.0, end_h=1.0, submit_s=T - 6 * H, queued_s=T - 6 * H)
    runs_still = run("3", "chem", start_h=20.0, end_h=inf, user="bob", partition="idle")
    waits = run("4", "phys", inf, inf, state="PENDING")
    found = report([run(), requeued, before, runs_still, waits])
    phys, chem = sorted(found.accounts, key=lambda one: one.account, reverse=True)
    assert (phys.account, phys.jobs, phys.users, phys.starts, phys.waiting) == ("phys", 2, 1, 2, 1)
    assert phys.received_gpu_h == 2 * 2 + 1 * 2
    # Half an hour each, and 23.5 h so far.
    assert phys.wait_mean_s == pytest.approx((0.5 + 0.5 + 23.5) / 3 * H)
    assert phys.asked_gpu_h == 2 * 8
    assert chem.received_gpu_h == 2 * 1 + 2 * 4 and chem.idle_nodes_gpu_h == 8
    assert chem.users == 2 and chem.starts == 1 and chem.asked_gpu_h == 8
    assert found.total.received_gpu_h == phys.received_gpu_h + chem.received_gpu_h
    assert phys.moves is None and phys.held_idle_gpu_h is None
    only = report([run(), before], window=replace(WINDOW, account="chem"))
    assert [one.account for one in only.accounts] == ["chem"] and only.total.jobs == 1


def test_moves_gain_as_long_as_the_run_lasts_that_they_led_to():
    after = run(start_h=3.1, end_h=5.1, submit_s=T + 3 * H, queued_s=T + 3.03 * H, gpus=1)
    later = run(start_h=6.0, end_h=9.0, submit_s=T + 5.5 * H, queued_s=T + 5.5 * H)
    known = RecordedUse(moves=[recorded(moved()), recorded(moved("77"))])
    found = report([run(), after, later], known).total
    # Two hours on one v100 did what eight hours of two k80 would.
    assert found.moves == 1 and found.gained_gpu_h == pytest.approx(2 * (4 * 2 - 1))
    assert found.lost_gpu_h == pytest.approx(36 * 2 / H)
    # A move before the window still gains in it, and is not counted again.
    rest = replace(WINDOW, from_s=T + 4.1 * H)
    found = report([after, later], known, rest).total
    assert found.moves == 0 and found.gained_gpu_h == pytest.approx(7) and found.lost_gpu_h == 0
    # Of a run that the window does not have nothing is counted, whatever ran later.
    assert report([later], known).total.gained_gpu_h == 0
    assert (
        report([after], RecordedUse(moves=[recorded(moved(rate_before=0))])).total.gained_gpu_h == 0
    )


def test_a_move_that_was_not_carried_out_costs_but_gains_nothing():
    after = run(start_h=3.1, end_h=5.1, submit_s=T + 3 * H, queued_s=T + 3.03 * H, gpus=1)
    elsewhere = replace(moved(), shown=f"runs on 1 x p100 on p1, {NOT_MEANT}")
    found = report([run(), after], RecordedUse(moves=[recorded(elsewhere)])).total
    assert found.moves == 0 and found.gained_gpu_h == 0
    assert found.lost_gpu_h == pytest.approx(36 * 2 / H)


def test_no_figure_is_minus_zero():
    found = report([run()])
    little = replace(found.total, moves=1, gained_gpu_h=-0.04, lost_gpu_h=-0.06)
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    console.print(shown.text(replace(found, accounts=[little], total=little)))
    said = printed.getvalue()
    assert "-0.1" in said and "-0.0" not in said


def test_samples_count_as_far_as_their_jobs_ran_in_the_window():
    samples = [SampledUse("1", DAY, 4 * H, 1 * H, 7.2e6, 4 * H), SampledUse("9", DAY, H, H, 1, H)]
    found = report([run()], RecordedUse(samples=samples)).total
    assert found.sampled_gpu_h == 4 and found.held_idle_gpu_h == 1
    assert found.energy_kwh == 2 and found.co2_kg == pytest.approx(0.8)
    half = report([run()], RecordedUse(samples=samples), replace(WINDOW, from_s=T + 2 * H)).total
    assert half.received_gpu_h == 2 and half.energy_kwh == 1 and half.held_idle_gpu_h == 0.5
    without = report([run()], RecordedUse(samples=samples), site=config()).total
    assert without.energy_kwh == 2 and without.co2_kg is None


def test_both_sides_of_a_rollout_are_compared():
    site = config("[rollout]\npercent = 50\n")
    known = RecordedUse(managed=frozenset({"1", "3"}), outside=frozenset({"2"}))
    runs = [run(), run("2", start_h=10.5, state="FAILED", end_h=12), run("4")]
    ours, others = report(runs, known, site=site).groups
    assert (ours.use.account, ours.use.jobs, ours.failed) == ("managed", 1, 0.0)
    assert (others.use.jobs, others.failed, others.use.wait_mean_s) == (1, 1.0, 10 * H)
    assert report(runs, known).groups == []
    # A comparison needs the jobs of all.
    assert report(runs, replace(known, everything=False), site=site).groups == []


def test_the_state_file_keeps_samples_by_day_and_who_is_outside(tmp_path):
    tmp_path.chmod(0o700)
    store = Store.open(tmp_path)
    samples = SampledUses(store.connection)
    use = TrainingUse(0.0, 2, 0.5, None, None, 300.0, None, 0.25, 0.25, 600.0)
    samples.record([("1", T + 600, use, 600.0)])
    samples.record([("1", T + 1200, replace(use, power_w=None), 600.0)])
    samples.record([("1", T - 10, use, 60.0)])
    samples.note_outside(["2"], T)
    known = account_usage.recorded(store, T)
    assert known.samples == [SampledUse("1", DAY, 2400.0, 1200.0, 180_000.0, 1200.0)]
    assert known.outside == {"2"} and known.managed == set() and known.moves == []
    assert len(list(samples.since(T - DAY_S))) == 2
    samples.forget(T + 31 * DAY_S)
    assert list(samples.since(0)) == [] and samples.outside() == set()
    store.close()


def test_a_user_gets_what_is_kept_of_their_own_jobs_and_of_accounts_that_they_coordinate(tmp_path):
    tmp_path.chmod(0o700)
    store = Store.open(tmp_path)
    use = TrainingUse(0.0, 2, 0.5, None, None, 300.0, None, 0.25, 0.25, 600.0)
    samples, owners = SampledUses(store.connection), StoredOwners(store.connection)
    jobs = [job("1", uid=1000, account="phys"), job("2", uid=1001, account="phys"),
            job("3", uid=1002, account="chem")]  # fmt: skip
    owners.note(jobs, T)
    for one in jobs:
        samples.record([(one.id, T + 600, use, 600.0)])
        entry = store.begin(one.id, "move", "asked", T, moved().details)
        store.end(entry, "moved", T + 5)

    def of(uid, *accounts):
        found = account_usage.recorded_of(store, T, uid, accounts)
        assert {one.job for one in found.samples} == {one.job for one in found.moves}
        assert not (found.everything or found.managed or found.outside)
        return {one.job for one in found.samples}

    assert of(1000) == {"1"} and of(1002, "phys") == {"1", "2", "3"} and of(7) == set()
    # A number that Slurm gives to another user's job, and an account that is changed.
    owners.note([replace(jobs[0], uid=1002, account="chem")], T + 60)
    assert of(1000) == set() and of(1001, "chem") == {"1", "2", "3"}
    owners.forget(T + 30)
    assert of(1001, "chem") == {"1"}
    # Of a job that stays it is written once a day.
    changes = store.connection.total_changes
    owners.note([replace(jobs[0], uid=1002, account="chem")], T + 120)
    assert store.connection.total_changes == changes
    store.close()


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_escapes_names_and_loads_nothing():
    hostile = '"><script src=//x>alert(1)</script>\u202e'
    site = config("[rollout]\npercent = 50\n[energy]\nco2_g_per_kwh = 400\n")
    known = RecordedUse(
        [SampledUse("1", DAY, H, H, 1e6, H)], [recorded(moved())], frozenset("1"), frozenset("2")
    )
    found = report([run(account=hostile), run("2")], known, site=site)
    tags = _Tags()
    tags.feed(shown.page(found))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.found}
    assert not any({"src", "href", "onclick"} & set(attrs) for _, attrs in tags.found)
    assert len([tag for tag, _ in tags.found if tag == "table"]) == 3
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(shown.text(found))
    text = console.export_text()
    assert "phys" in text and "\u202e" not in text and "400 g per kWh" in text
    json.dumps(asdict(found))


def test_a_report_of_nothing_is_a_page_too():
    found = report([])
    assert found.accounts == [] and found.total.wait_mean_s is None
    assert "0 jobs" in shown.page(found)


@pytest.mark.parametrize("width", [80, 200])
def test_at_any_width_an_account_is_one_line_and_no_figure_is_cut(width):
    runs = [
        run(str(n), f"group-{n % 40:02d}-of-a-long-name", 0.0, 24.0, gpus=64, submit_s=T - 30 * H,
            queued_s=T - 30 * H)
        for n in range(2000)
    ]  # fmt: skip
    samples = [SampledUse(str(n), DAY, 64 * 24 * H, 9 * H, 7.2e9, H) for n in range(2000)]
    moves = [recorded(moved(str(n), rate_before=90.0)) for n in range(0, 2000, 2)]
    site = config("[rollout]\npercent = 50\n[energy]\nco2_g_per_kwh = 400\n")
    odd = frozenset(str(n) for n in range(1, 2000, 2))
    known = RecordedUse(samples, moves, frozenset(map(str, range(2000))) - odd, odd)
    found = report(runs, known, site=site)
    file = io.StringIO()
    Console(width=width, file=file).print(shown.text(found))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    # The title, then for each account and all together one line in two tables.
    assert sum(line.startswith("group-") for line in lines) == 2 * 40
    whole = [line for line in lines if line.startswith("all ")]
    assert len(whole) == 2 and "3,072,000" in whole[0] and "4,000,000" in whole[1]
    assert "1.2 d" in whole[0] and not any("…" in line[20:] for line in lines)
    assert any(line.startswith("managed") for line in lines)
