"""A sandbox with accounting: what it needs is looked for before anything is made."""

from pathlib import Path

import pytest

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import accounting, programs
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.options import SandboxOptions

NEEDED = ("mariadbd", "mariadb-install-db", "my_print_defaults", "slurmdbd", "setsid")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A Slurm of its own prefix, with the plugins that a test names."""
    prefix = tmp_path / "slurm"
    (prefix / "sbin").mkdir(parents=True)
    for name in NEEDED:
        (prefix / "sbin" / name).write_text("#!/bin/sh\n")
        (prefix / "sbin" / name).chmod(0o755)

    def made(*plugins, where="lib/slurm"):
        (prefix / where).mkdir(parents=True)
        for name in plugins:
            (prefix / where / f"accounting_storage_{name}.so").touch()
        sbin = prefix / "sbin"
        tools = programs.Programs(
            sbin / "slurmctld",
            sbin / "slurmd",
            Path("/usr/sbin/munged"),
            sbin,
            (24, 11),
            "",
            prefix,
        )
        monkeypatch.setattr(programs, "find", lambda _: tools)
        return tools

    return made


def test_a_slurm_without_the_plugin_of_a_database_makes_no_folder(slurm, tmp_path):
    slurm("slurmdbd", "ctld_relay")
    box = tmp_path / "box"
    with pytest.raises(HadarError, match=r"accounting_storage_mysql\.so, which .*/lib/slurm does"):
        Sandbox.up(box, options=SandboxOptions(with_accounting=True))
    assert not box.exists()


@pytest.mark.parametrize(
    ("plugins", "where"),
    [
        (("slurmdbd", "mysql"), "lib/slurm"),
        (("slurmdbd", "mysql"), "lib/x86_64-linux-gnu/slurm-wlm"),
        # Plugins somewhere else: slurmdbd itself says it.
        ((), "lib/slurm"),
    ],
)
def test_one_that_has_it_or_keeps_its_plugins_elsewhere_is_taken(slurm, plugins, where):
    assert accounting.find(slurm(*plugins, where=where)).keys() == {*NEEDED}
