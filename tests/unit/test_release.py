"""What is handed out: the source archive, the wheel made from it, and what runs from that."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "slurm_hadar"
SHARED = ("job_templates", "site_configs", "packaging")
CONF = "ClusterName=c\nNodeName=v1 Gres=gpu:v100:2 Features=v100\nPartitionName=gpu Nodes=ALL\n"
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
    pip("install", "--no-deps", "--target", folder, built[1], cwd=folder)
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
