"""What is handed out: the source archive, the wheel made from it, and what runs from that."""

import gzip
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from slurm_hadar.isolated import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "slurm_hadar"
SHARED = ("job_templates", "site_configs", "packaging")
CONF = "ClusterName=c\nNodeName=v1 Gres=gpu:v100:2 Features=v100\nPartitionName=gpu Nodes=ALL\n"
BIN = str(Path(sys.executable).parent)
LIBRARIES = sysconfig.get_path("purelib")
TOML = "[gpu_types.v100]\nmemory_gb = 16\n"


def ran(*argv, cwd, **environment):
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8", **environment}
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*words, cwd):
    return ran(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive, unpacked, and the wheel that was made from there."""
    folder = tmp_path_factory.mktemp("release")

    def build(kind, source):
        words = ("-m", "hatchling", "build", "-t", kind, "-d", folder / "dist")
        ran(sys.executable, *words, cwd=source)

    build("sdist", ROOT)
    (archive,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    source = folder / archive.name.removesuffix(".tar.gz")
    build("wheel", source)
    (wheel,) = (folder / "dist").glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The wheel alone, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-compile", "--target", folder, built[1], cwd=folder)
    return folder


def tracked(folder):
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_the_source_archive_has_all_that_a_site_needs(built):
    source, _ = built
    for name in (*SHARED, "examples", "docs/man"):
        assert tracked(source / name) == tracked(ROOT / name), name
    for name in ("install.sh", "LICENSE", "README.md", "CHANGELOG.md", "docs/admin.md"):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert os.access(source / "install.sh", os.X_OK)
    assert len(list((source / "docs" / "man").rglob("*.[15]"))) == 3


def test_the_wheel_has_the_whole_package_and_the_folders_beside_it(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    assert {f"slurm_hadar/{name}" for name in tracked(PACKAGE)} <= names
    for folder in SHARED:
        wanted = {f"slurm_hadar/_share/{folder}/{name}" for name in tracked(ROOT / folder)}
        assert wanted and wanted <= names, folder
    for kind in (".lua", ".c", ".sh", ".j2", ".json", ".csv"):
        assert any(name.endswith(kind) for name in names), kind
    # Nothing of the tests, of caches, or of somebody's runs.
    strange = [one for one in names if not one.startswith(("slurm_hadar/", "slurm_hadar-"))]
    assert not strange and not [one for one in names if "__pycache__" in one or "/slurm-1" in one]


def test_the_man_pages_come_with_pip(installed):
    pages = tracked(ROOT / "docs" / "man")
    assert tracked(installed / "share" / "man") == pages and len(pages) == 3
    for page in pages:
        text = (installed / "share" / "man" / page).read_bytes()
        assert text == (ROOT / "docs" / "man" / page).read_bytes()


def test_the_commands_run_from_the_wheel_alone(installed, tmp_path):
    def hadar(*words, module="slurm_hadar.cli.main"):
        return ran(sys.executable, "-m", module, *words, cwd=tmp_path, **env)

    env = {"PYTHONPATH": str(installed), "HADAR_CONFIG": str(tmp_path / "hadar.toml")}
    where = ran(
        sys.executable, "-c", "import slurm_hadar as h; print(h.__file__)", cwd=tmp_path, **env
    )
    assert where.startswith(str(installed))
    (tmp_path / "hadar.toml").write_text(TOML)
    (tmp_path / "slurm.conf").write_text(CONF)
    assert "plugins" in hadar("--help")
    assert "pytorch_single" in hadar("template", "list")
    conf = tmp_path / "slurm.conf"
    shown = hadar("plugins", "install", "--dry-run", "--slurm-conf", conf, "--plugin", "job-submit")
    assert "+JobSubmitPlugins=lua" in shown and conf.read_text() == CONF
    hadar("manual", tmp_path / "man")
    for page in tracked(ROOT / "docs" / "man"):
        assert (tmp_path / "man" / page).read_bytes() == (ROOT / "docs" / "man" / page).read_bytes()


def test_hbatch_needs_none_of_the_libraries(installed, tmp_path):
    env = {"PYTHONPATH": str(installed)}
    # -S: without site-packages.
    words = ("-S", "-m", "slurm_hadar.cli.hbatch", "--hadar-help")
    assert "--hadar-model" in ran(sys.executable, *words, cwd=tmp_path, **env)


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """The Debian package, and its files in a folder. The libraries are those of the tests."""
    for program in ("dpkg-deb", "/usr/bin/python3"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed; the Debian package needs it")
    version = "import sys; print(*sys.version_info[:2])"
    own = ran("/usr/bin/python3", "-c", version, cwd="/")
    if own != ran(sys.executable, "-c", version, cwd="/"):
        pytest.skip("the libraries of these tests are for another Python than /usr/bin/python3")
    folder = tmp_path_factory.mktemp("deb")
    script = built[0] / "packaging" / "deb" / "build.sh"
    words = ("--wheel", built[1], "--exchange", "/ex", folder)
    ran(script, *words, cwd=folder, PIP_NO_DEPS="1", PYTHONPATH=LIBRARIES)
    (package,) = folder.glob("*.deb")
    ran("dpkg-deb", "-x", package, folder / "files", cwd=folder)
    ran("dpkg-deb", "-e", package, folder / "files" / "DEBIAN", cwd=folder)
    return package, folder / "files"


@pytest.mark.timeout(250)
def test_what_the_debian_package_says_of_itself(unpacked):
    package, _ = unpacked
    control = ran("dpkg-deb", "-f", package, cwd="/")
    fields = dict(line.split(": ", 1) for line in control.splitlines() if not line.startswith(" "))
    assert fields["Version"] == ran("hadar", "--version", cwd="/", PATH=BIN).split()[-1]
    major, minor = sys.version_info[:2]
    python = f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"
    assert fields["Depends"].startswith(python) and "@" not in control.replace("@localhost", "")
    listed = ran("dpkg-deb", "-c", package, cwd="/").splitlines()
    assert all(line.split()[1] == "root/root" for line in listed)


def test_what_the_debian_package_brings(unpacked):
    _, files = unpacked
    for page in tracked(ROOT / "docs" / "man"):
        text = (ROOT / "docs" / "man" / page).read_bytes()
        assert gzip.decompress((files / "usr/share/man" / f"{page}.gz").read_bytes()) == text
    for unit in (files / "usr/lib/systemd/system").iterdir():
        text = unit.read_text()
        assert "@" not in text and ("=/usr/bin/hadar" in text) is (unit.suffix == ".service")
    assert (
        "ReadWritePaths=/ex\n" in (files / "usr/lib/systemd/system/slurm-hadar.service").read_text()
    )
    assert "u hadar " in (files / "usr/lib/sysusers.d/slurm-hadar.conf").read_text()
    # Else each machine would give the shared folder to its own user hadar.
    assert "/ex" not in (files / "usr/lib/tmpfiles.d/slurm-hadar.conf").read_text()
    assert (files / "DEBIAN/conffiles").read_text() == "/etc/logrotate.d/slurm-hadar\n"
    assert (files / "etc/logrotate.d/slurm-hadar").exists()
    completions = {"bash-completion/completions": "{}", "zsh/vendor-completions": "_{}"}
    completions["fish/vendor_completions.d"] = "{}.fish"
    for folder, name in completions.items():
        for program in ("hadar", "hbatch"):
            assert program in (files / "usr/share" / folder / name.format(program)).read_text()
    # Nothing is switched on, neither by links of systemd's nor by a cron line.
    assert not list(files.rglob("*.wants")) and not (files / "etc/cron.d").exists()
    for script in ("postinst", "prerm", "postrm"):
        ran("sh", "-n", files / "DEBIAN" / script, cwd="/")
        assert os.access(files / "DEBIAN" / script, os.X_OK)


def test_the_debian_package_runs_from_where_it_lies(unpacked, tmp_path):
    _, files = unpacked
    lib = files / "usr/lib/slurm-hadar"
    for program in ("hadar", "hbatch"):
        link = files / "usr/bin" / program
        assert link.is_symlink() and link.resolve() == lib / "bin" / program
        first = link.read_text().splitlines()[0]
        assert first == f"#!/usr/lib/slurm-hadar/bin/python {PROGRAMS[program]}"
    (site,) = lib.glob("lib/python3.*/site-packages")
    own = f"sys.path.append('/usr/lib/slurm-hadar/lib/{site.parent.name}/site-packages')"
    assert own in (lib / "bin/hbatch").read_text()
    assert (site / "slurm_hadar/__pycache__").is_dir()
    # No library of its own is needed for hbatch; hadar takes those of the tests here.
    plain = ran(lib / "bin/python", "-E", lib / "bin/hbatch", "--hadar-help", cwd=tmp_path)
    assert "--hadar-model" in plain
    code = "import slurm_hadar; print(slurm_hadar.__file__)"
    env = {"PYTHONPATH": LIBRARIES}
    assert ran(lib / "bin/python", "-c", code, cwd=tmp_path, **env).startswith(str(site))
    shown = ran(lib / "bin/python", lib / "bin/hadar", "template", "list", cwd=tmp_path, **env)
    assert "pytorch_single" in shown


def test_a_debian_package_for_a_strange_folder_is_refused(built, tmp_path):
    script = built[0] / "packaging" / "deb" / "build.sh"
    for words in (("--exchange", "ex; rm"), ("--exchange=",), ("--wheel", "none"), ("-x",)):
        done = subprocess.run(
            [script, *words, tmp_path / "to"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode and done.stderr and not (tmp_path / "to").exists(), words
