"""``hadar report`` agrees with sacct, and shows each user what Slurm's accounting does."""

import json
import sys
from datetime import datetime

import people
import pytest
from people import ADA, BOB, EVE, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

SCRIPT = "#!/bin/sh\n#HADAR types=v100,k80 gpus=1 model=transformer\nsleep 600\n"


def report(site, user, *more):
    return reports(site, user, more)[0]


def reports(site, user, *options):
    """Several, by one process."""
    answers = site.many(user, [["report", "--since", "24h", "--json", *one] for one in options])
    assert not [said for code, said in answers if code]
    return [json.loads(said)["result"] for _, said in answers]


def sacct_gpu_s(site, *more):
    """GPU-seconds of all runs, as an admin adds them up."""
    columns = "ElapsedRaw,AllocTRES"
    lines = site.admin("sacct", "-a", "-X", "-D", "-n", "-P", "-S", "now-24hours", "-o", columns,
                       *more).splitlines()  # fmt: skip
    total = 0
    for line in lines:
        seconds, tres = line.split("|")
        total += int(seconds) * sum(
            int(part.partition("=")[2]) for part in tres.split(",") if part.startswith("gres/gpu=")
        )
    return total


# As the controller's user keeps what samplers saw: 0.1 GPU-hours of each job.
SAMPLED = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1])
now = time.time()
for job in sys.argv[2:]:
    row = (job, int(now // 86400), 360.0, 180.0, 3600.0, 360.0)
    connection.execute("INSERT OR REPLACE INTO sampled_use VALUES (?,?,?,?,?,?)", row)
connection.commit()
"""


def test_the_figures_are_those_of_sacct_and_of_ones_own(tmp_path):
    with people.staffed() as site:
        phys = [site.submit(ADA, script=SCRIPT), site.submit(BOB, script=SCRIPT)]
        chem = site.submit(EVE, "-p", "k80", script=SCRIPT)
        array = site.submit(BOB, "--array=3,5", script=SCRIPT)
        tasks = [f"{array}_3", f"{array}_5"]
        everything = [*phys, chem, *tasks]
        site.until(lambda: all(site.show(job, "%T") == "RUNNING" for job in everything))
        site.tick()
        # Another run of the same job: sacct alone would show the last one only.
        for job in (phys[0], tasks[0]):
            site.admin("scontrol", "requeue", job)
        site.until(lambda: all("PENDING" in site.show(j, "%T") for j in (phys[0], tasks[0])))
        site.admin("scontrol", "update", f"JobId={tasks[0]}", "StartTime=now")
        site.until(lambda: site.show(tasks[0], "%T") == "RUNNING")
        # sacct shows no job that could not start in the time that is asked for.
        site.submit(ADA, "--begin=now+1hour", script=SCRIPT)
        site.cancel()

        def ended():
            states = site.admin("sacct", "-a", "-X", "-n", "-P", "-o", "JobID,State,End")
            return all(f"{job}|CANCELLED" in states for job in everything) and not any(
                word in states for word in ("RUNNING", "PENDING", "Unknown")
            )

        site.until(ended)
        found, only, of_bob = reports(site, HADAR, (), ("--account", "chem"), ("--user", BOB))
        by_name = {one["account"]: one for one in found["accounts"]}
        for name, words in (("phys", ["-A", "phys"]), ("chem", ["-A", "chem"])):
            assert by_name[name]["received_gpu_h"] * 3600 == pytest.approx(
                sacct_gpu_s(site, *words)
            ), name
        assert found["total"]["received_gpu_h"] * 3600 == pytest.approx(sacct_gpu_s(site))
        assert sacct_gpu_s(site) > 0 and by_name["phys"]["jobs"] == len(phys + tasks)
        assert by_name["phys"]["starts"] == 5 and by_name["phys"]["moves"] == 0
        assert of_bob["total"]["received_gpu_h"] * 3600 == pytest.approx(
            sacct_gpu_s(site, "-u", BOB)
        )
        assert by_name["chem"]["users"] == 1 and by_name["chem"]["jobs"] == 1
        assert [one["account"] for one in only["accounts"]] == ["chem"]
        page = site.homes[HADAR] / "use.html"
        names = ("$(reboot);'", "no-such")
        *wrong, text, looked = site.many(
            HADAR,
            [
                *(
                    [command, "--account", name]
                    for command in ("report", "status")
                    for name in names
                ),
                ["report", "--html", str(page)],
                # What is to be reported by mail: nothing here, and that is for the operator.
                ["alerts"],
            ],
        )
        for (code, said), name in zip(wrong, names * 2, strict=True):
            assert code == 1 and f"Slurm shows you no account {name}" in said
        assert "phys" in text[1] and "phys" in page.read_text()
        off = "alerts.enabled is false: nothing is sent"
        assert looked[1].splitlines() == ["No alerts.", off]
        began = datetime.now().strftime("%Y-%m-%d")
        since, refused = site.many(EVE, [["report", "--since", began], ["alerts"]])
        assert "chem" in since[1] and refused[0] == 1 and f"owned by {HADAR}" in refused[1]

        # A user sees their own jobs, and without a controller nothing that it alone knows.
        hers, everyones = reports(site, EVE, (), ("--user", "all"))
        assert {one["account"] for one in hers["accounts"]} == {"chem"}
        assert hers["total"]["moves"] is None and "no controller answers" in str(hers["notes"])
        assert everyones["total"]["jobs"] == found["total"]["jobs"]
        conf = site.box.conf.parent / "slurmdbd.conf"
        conf.write_text(conf.read_text() + "PrivateData=jobs,usage,users,accounts\n")
        site.admin("sacctmgr", "-i", "reconfigure")
        site.until(lambda: report(site, EVE, "--user", "all")["total"]["jobs"] == 1)
        state = site.folder / "state" / "hadar.sqlite"
        site(HADAR, sys.executable, "-c", SAMPLED, str(state), *everything)
        # Ada coordinates an account above phys.
        site.admin("sacctmgr", "-i", "add", "account", "science")
        site.admin("sacctmgr", "-i", "modify", "account", "phys", "set", "parent=science")
        site.admin("sacctmgr", "-i", "add", "coordinator", "account=science", f"names={ADA}")
        with site.runs():
            for user, accounts, jobs, sampled in (
                (EVE, {"chem"}, 1, 0.1), (BOB, {"phys"}, 3, 0.3), (ADA, {"phys"}, 4, 0.4),
                (HADAR, {"chem", "phys"}, 5, 0.5), (None, {"chem", "phys"}, 5, 0.5),
            ):  # fmt: skip
                for shown in reports(site, user, (), ("--user", "all")):
                    assert {one["account"] for one in shown["accounts"]} == accounts, user
                    assert shown["total"]["jobs"] == jobs, user
                    assert shown["total"]["moves"] == 0 and not shown["notes"], user
                    assert shown["total"]["sampled_gpu_h"] == pytest.approx(sampled), user
        assert report(site, HADAR)["total"]["jobs"] == found["total"]["jobs"]
