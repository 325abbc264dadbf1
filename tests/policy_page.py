"""The package of the page for authors of policies, built from the page itself."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "policy_author.md"
NAME = "big_first"


def sources() -> tuple[str, str, str]:
    """The policy, its tests and its pyproject.toml, as the page has them."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    policy, tests = (body for kind, body in blocks if kind == "python")
    (project,) = (body for kind, body in blocks if not kind)
    return policy, tests, project


def write(folder: Path) -> Path:
    """The package's folder."""
    folder.mkdir()
    names = (f"{NAME}.py", f"test_{NAME}.py", "pyproject.toml")
    for name, text in zip(names, sources(), strict=True):
        (folder / name).write_text(text)
    return folder


def install(folder: Path, target: Path) -> Path:
    """The package, built by its own pyproject.toml, alone in ``target``; without a network."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check", "--target", target, folder),
        ],
        check=True,
        timeout=120,
    )
    return target
