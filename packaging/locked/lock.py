"""Writes what lies beside it: ``site.txt`` and ``build.txt``, and from these ``sbom.cdx.json``.

``python packaging/locked/lock.py`` asks PyPI for the newest releases that pyproject.toml allows;
needs uv on PATH. ``--sbom`` writes the SBOM alone.

``site.txt``: what ``install.sh site`` installs, with the extras ``controller``, ``plugins`` and
``web``, for Python 3.11 and later on every platform, with the SHA-256 of each file that PyPI has
of a release. ``build.txt``: what builds our wheel.
``sbom.cdx.json``: the releases of ``site.txt`` as CycloneDX 1.6.
"""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_EXTRAS = ("--extra", "controller", "--extra", "plugins", "--extra", "web")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))? \\$", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def compile_(source: str, name: str, text: str = "") -> None:
    """One lock file from ``source``, or from ``text`` where that is "-"."""
    subprocess.run(
        ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes",
         "--no-header", "--no-annotate", "--quiet", "--output-file", str(HERE / name),
         *(() if text else _EXTRAS), source],
        input=text, text=True, check=True, cwd=ROOT,
    )  # fmt: skip


def sbom() -> str:
    """The SBOM of ``site.txt``: the same text for the same file."""
    lock = (HERE / "site.txt").read_text()
    found = _VERSION.search((ROOT / "slurm_hadar" / "__init__.py").read_text())
    version = found[1] if found else ""
    ours = f"pkg:pypi/slurm-hadar@{version}"
    parts = []
    for name, release, marker in _PINNED.findall(lock):
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{release}"
        part = {"type": "library", "bom-ref": purl, "name": name, "version": release, "purl": purl}
        if marker:
            part["properties"] = [{"name": "slurm-hadar:marker", "value": marker}]
        parts.append(part)
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ours + lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": "slurm-hadar",
                "version": version,
                "purl": ours,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": parts,
        "dependencies": [{"ref": ours, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(content, indent=1) + "\n"


def main() -> None:
    """All three files."""
    if "--sbom" not in sys.argv:
        compile_("pyproject.toml", "site.txt")
        compile_("-", "build.txt", "hatchling>=1.21\n")
    (HERE / "sbom.cdx.json").write_text(sbom())


if __name__ == "__main__":
    main()
