"""``hadar top`` where the extra ``top`` is not installed."""

import sys
from types import SimpleNamespace

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.cli import top as command
from slurm_hadar.domain.errors import HadarError


def test_a_user_is_sent_to_the_admin_and_not_to_pip(monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=terminal, stdout=terminal))
    monkeypatch.setattr(command, "load_to_ask", lambda _: configuration.Config())
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in [one for one in sys.modules if one.startswith("textual.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "slurm_hadar.cli.top_view", raising=False)
    with pytest.raises(HadarError) as caught:
        command.top()
    said = str(caught.value)
    assert "extra top" in said and "admin" in said and "pip" not in said
    assert "hadar status --watch" in said
