"""``hadar report`` agrees with sacct, and shows each user what Slurm's accounting does."""

import json
from datetime import datetime

import people
import pytest
from people import ADA, BOB, EVE, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SCRIPT = "#!/bin/sh\n#HADAR types=v100,k80 gpus=1 model=transformer\nsleep 600\n"


def report(site, user, *more):
    text = site(user, "hadar", "report", "--since", "24h", "--json", *more)
    return json.loads(text)["result"]


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


def test_the_figures_are_those_of_sacct_and_of_ones_own(tmp_path):
    with people.staffed() as site:
        phys = [site.submit(ADA, script=SCRIPT), site.submit(BOB, script=SCRIPT)]
        chem = site.submit(EVE, "--gres=gpu:2", script="#!/bin/sh\nsleep 600\n")
        site.until(lambda: all(site.show(job, "%T") == "RUNNING" for job in (*phys, chem)))
        site.tick()
        # Another run of the same job: sacct alone would show the last one only.
        site.admin("scontrol", "requeue", phys[0])
        site.until(lambda: "PENDING" in site.show(phys[0], "%T"))
        # sacct shows no job that could not start in the time that is asked for.
        site.submit(ADA, "--begin=now+1hour", script=SCRIPT)
        site.cancel()

        def ended():
            states = site.admin("sacct", "-a", "-X", "-n", "-P", "-o", "JobID,State,End")
            return all(f"{job}|CANCELLED" in states for job in (*phys, chem)) and not any(
                word in states for word in ("RUNNING", "PENDING", "Unknown")
            )

        site.until(ended)
        found = report(site, HADAR)
        by_name = {one["account"]: one for one in found["accounts"]}
        for name, words in (("phys", ["-A", "phys"]), ("chem", ["-A", "chem"])):
            assert by_name[name]["received_gpu_h"] * 3600 == pytest.approx(
                sacct_gpu_s(site, *words)
            ), name
        assert found["total"]["received_gpu_h"] * 3600 == pytest.approx(sacct_gpu_s(site))
        assert sacct_gpu_s(site) > 0 and by_name["phys"]["jobs"] == len(phys)
        assert by_name["phys"]["starts"] == 2 and by_name["phys"]["moves"] == 0
        assert by_name["chem"]["users"] == 1
        only = report(site, HADAR, "--account", "chem")
        assert [one["account"] for one in only["accounts"]] == ["chem"]
        assert report(site, HADAR, "--account", "$(reboot);'")["accounts"] == []
        page = site.homes[HADAR] / "use.html"
        assert "phys" in site(HADAR, "hadar", "report", "--html", str(page))
        assert "phys" in page.read_text()
        began = datetime.now().strftime("%Y-%m-%d")
        assert "chem" in site(EVE, "hadar", "report", "--since", began)

        # What is to be reported by mail: nothing here, and that is for the operator.
        looked = site(HADAR, "hadar", "alerts")
        assert looked.strip() == "alerts.enabled is false: nothing is sent"
        assert f"owned by {HADAR}" in site(EVE, "hadar", "alerts", code=1)

        # A user sees what the accounting shows to them.
        hers = report(site, EVE)
        assert hers["total"]["moves"] is None and "operator" in hers["notes"][0]
        conf = site.box.conf.parent / "slurmdbd.conf"
        conf.write_text(conf.read_text() + "PrivateData=jobs,usage\n")
        site.admin("sacctmgr", "-i", "reconfigure")
        site.until(lambda: {one["account"] for one in report(site, EVE)["accounts"]} == {"chem"})
        assert report(site, HADAR)["total"]["jobs"] == found["total"]["jobs"]
