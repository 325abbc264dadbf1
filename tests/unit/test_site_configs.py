"""The example configurations, as an admin would copy them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import config as configuration
from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.checks.check_cluster import partition_findings
from slurm_hadar.controller.checks.wrapper_site import wrapper_site
from slurm_hadar.tuning import conf
from slurm_hadar.tuning import site as tuning_site

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "site_configs").glob("*.toml"))


OWN_JOBS_ONLY = "no_accounting"


def test_the_examples_that_there_are():
    assert [path.stem for path in EXAMPLES] == [
        "condo", "hpc_idle", "mixed", "no_accounting", "one_partition", "smallest", "teaching",
    ]  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_is_safe(path):
    site = configuration.load(path)
    assert site.site.mode == "observe"
    own = path.stem == OWN_JOBS_ONLY
    assert site.site.rights == ("user" if own else "operator")
    # Jobs would else believe plan files of whoever wrote the JSON for hbatch.
    assert own or site.site.controller_user
    assert site.gpu_types
    assert not site.notes
    policies.get(site.controller.policy)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_hbatch_can_be_given_an_example(path):
    site = configuration.load(path)
    here = site.model_copy(update={"site": site.site.model_copy(update={"controller_user": ""})})
    known: dict[str, Any] = wrapper_site(here, path)
    assert known["mode"] == "observe"
    assert known["types"].keys() == site.gpu_types.keys()
    assert all(gpu["feature"] and gpu["memory_gb"] for gpu in known["types"].values())


def test_the_smallest_example_relies_on_the_defaults():
    site = configuration.load(next(path for path in EXAMPLES if path.stem == "smallest"))
    default = Config()
    own = {"site": default.site, "gpu_types": {}, "queue": default.queue}
    assert site.model_copy(update=own) == default
    assert site.queue.exchange == "association" and site.site.rights == "operator"


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem != "smallest"], ids=lambda path: path.stem
)
def test_an_example_shows_what_its_slurm_conf_needs(path):
    text, site = path.read_text(), configuration.load(path)
    for name, gpu in site.gpu_types.items():
        lines = [line for line in text.splitlines() if f"Gres=gpu:{name}:" in line]
        assert len(lines) == 1 and f"Feature={gpu.feature or name}" in lines[0]
    groups = site.partitions.groups
    members = [member for group in groups.values() for member in group]
    for partition in (*groups, *members, *site.partitions.opt_in, *site.backfill.partitions):
        assert f"PartitionName={partition} " in text


def slurm_conf(path):
    """The lines of slurm.conf in an example's comments, as a site."""
    lines = re.findall(r"^#   (.*)$", path.read_text(), re.MULTILINE)
    return tuning_site.of_conf(conf.parse("\n".join(lines), path))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_groups_of_an_example_are_fine(path):
    site, there = configuration.load(path), slurm_conf(path)
    found = list(partition_findings(site, {}, there.partitions, there.nodes))
    grouped = [finding for finding in found if finding.level == "ok"]
    assert not [finding for finding in found if finding.level == "problem"]
    assert len(grouped) == len(site.partitions.groups)
    assert bool(grouped) is (path.stem in ("mixed", "hpc_idle", "teaching"))
    warned = [finding for finding in found if finding.level == "warning"]
    assert bool(warned) is (path.stem in ("one_partition", "no_accounting"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_commented_out_setting_is_one_that_there_is(path):
    """A comment like ``# tflops = 8.1`` is meant to be uncommented as it stands."""
    text = path.read_text()
    lines = text.splitlines()
    found = 0
    for number, line in enumerate(lines):
        bare = line.removeprefix("# ")
        if bare == line or "=" not in bare or not bare.split("=")[0].strip().isidentifier():
            continue
        try:
            tomllib.loads(bare)
        except tomllib.TOMLDecodeError:
            continue
        found += 1
        configuration.parse("\n".join([*lines[:number], bare, *lines[number + 1 :]]), path.name)
    assert found == (1 if path.stem == "mixed" else 0)
