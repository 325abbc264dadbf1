"""The contract with Slurm on its releases: ``python -m benchmarks.releases [--suite forky]``.

Without ``--suite`` on the Slurm of PATH, and on that below $HADAR_TEST_SLURM where it is set
(``/usr``, with a PySlurm for it: the Slurm of PATH once more); ``--only pyslurm`` with that back
end alone. With ``--suite`` on the Slurm of that suite of Debian, which is made in ``--folder``
(root, debootstrap and about 2 GB are needed) and removed again unless ``--keep``. ``--write`` puts
the columns into docs/releases.md; exit 1 where a test failed. ``--check`` runs nothing and says
which columns are older than the contract or than the code that talks to Slurm. ``--tests`` runs
others than the contract inside the later Debian and prints what they print.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.releases import page
from benchmarks.releases.debian import PYTHON, Debian
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox import programs

_ARGUMENTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
_LONGEST_S = 1800.0


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--suite", default="", help="suite of Debian, such as forky")
    parser.add_argument("--folder", type=Path, help="where it is made")
    parser.add_argument("--keep", action="store_true", help="leave it there for the next time")
    parser.add_argument("--tests", nargs="*", help="other tests, by their paths")
    parser.add_argument("--only", choices=("commands", "pyslurm"), help="this back end alone")
    parser.add_argument("--check", action="store_true", help="which columns are too old")
    parser.add_argument("--write", action="store_true", help="into docs/releases.md")
    args = parser.parse_args()
    if args.check:
        sys.exit(_too_old())
    made = page.now()
    try:
        if args.suite:
            with tempfile.TemporaryDirectory() as name:
                debian = Debian(args.folder or Path(name) / args.suite, page.ROOT)
                found = _inside(debian, args.suite, args.tests or [])
                if args.folder and not args.keep:
                    debian.remove()
        else:
            found = _here(args.only or "")
    except HadarError as error:
        sys.exit(str(error))
    for column, cells in found.items():
        counts = [cell for cell in cells.values() if cell != "-"]
        failed = [test for test, cell in cells.items() if cell == "failed"]
        print(f"{column}: {len(counts)} tests, failed: {', '.join(failed) or 'none'}")
    if args.write:
        page.PAGE.write_text(page.written(page.PAGE.read_text(), found, made))
    sys.exit(any("failed" in cells.values() for cells in found.values()))


def _too_old() -> bool:
    text = page.PAGE.read_text()
    found = {what: page.older(text, what) for what in ("contract", "code")}
    for what, columns in found.items():
        print(f"made with another {what} than today's: {'; '.join(columns) or 'none'}")
    return any(found.values())


def _here(only: str) -> dict[str, page.Column]:
    second = os.environ.get("HADAR_TEST_SLURM")
    first = _version(None)
    names = {"commands-path": f"{first}, commands"}
    if second:
        version = _version(Path(second))
        if version != first:
            names["commands-prefix"] = f"{version}, commands"
        names["pyslurm-prefix"] = f"{version}, {_pyslurm()}"
    names = {id_: column for id_, column in names.items() if id_.startswith(only)}
    if not names:
        raise UsageError("HADAR_TEST_SLURM names no Slurm for PySlurm; set it to a prefix")
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        which = ["-k", " or ".join(names), f"--junitxml={report}"]
        argv = [sys.executable, *_ARGUMENTS, *which, str(page.CONTRACT)]
        subprocess.run(argv, cwd=page.ROOT, timeout=_LONGEST_S, check=False)
        return page.columns(report.read_text(), names)


def _pyslurm() -> str:
    try:
        return f"PySlurm {metadata.version('pyslurm')}"
    except metadata.PackageNotFoundError:
        return "PySlurm"


def _version(prefix: Path | None) -> str:
    return programs.find(prefix).version.split()[-1]


def _inside(debian: Debian, suite: str, others: list[str]) -> dict[str, page.Column]:
    debian.make(suite)
    version = debian.run(["slurmctld", "-V"], 30).split()[-1]
    if others:
        print(debian.run([PYTHON, *_ARGUMENTS, *others], _LONGEST_S, check=False))
        return {}
    contract = str(page.CONTRACT.relative_to(page.ROOT))
    argv = [PYTHON, *_ARGUMENTS, "--junitxml=/root/report.xml", "-k", "commands-path", contract]
    print(debian.run(argv, _LONGEST_S, check=False))
    report = (debian.folder / "root" / "report.xml").read_text()
    return page.columns(report, {"commands-path": f"{version}, commands"})


if __name__ == "__main__":
    main()
