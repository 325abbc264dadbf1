import os
from pathlib import Path

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.cli.common import reader_of
from slurm_hadar.domain.errors import HadarError


def test_whoever_is_not_the_controllers_user_is_told_whose_command_it_is(tmp_path):
    folder = Path("/usr")
    if os.getuid() == 0:
        folder = tmp_path / "state"
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, -1)
    site = configuration.parse(f'[site]\nstate_dir = "{folder}"\n', "here")
    with pytest.raises(HadarError) as caught, reader_of(site):
        pass
    said = str(caught.value)
    assert str(folder) in said and f"sudo -u {folder.owner()}" in said and "\n" not in said
    assert "set site.state_dir" not in said
