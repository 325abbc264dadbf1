"""The recipes for programs that submit jobs are what a live test runs, and short."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 10


def test_each_recipe_is_what_is_run_and_at_most_ten_lines():
    page = (ROOT / "docs" / "integrations.md").read_text()
    page = page[page.index("## Programs that submit jobs") :]
    shown = dict(re.findall(r"^### (.+?)\n.*?```text\n(.*?)```$", page, re.MULTILINE | re.DOTALL))
    source = (ROOT / "tests" / "live" / "client_runs.py").read_text()
    found = re.findall(r"^ *# recipe: (.+?)\n(.*?)^ *# end$", source, re.MULTILINE | re.DOTALL)
    run = {}
    for name, text in found:
        text = textwrap.dedent(text).replace("  # fmt: skip", "")
        # A template of a file has its braces doubled.
        run[name] = text.replace("{{", "{").replace("}}", "}") if "{{" in text else text
    assert len(run) == 6 and shown == run
    assert max(text.strip().count("\n") + 1 for text in shown.values()) <= MOST_LINES
