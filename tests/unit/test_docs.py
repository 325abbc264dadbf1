"""The documentation names only what there is: files, commands, options, keys, defaults."""

import ast
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from pydantic import BaseModel

from slurm_hadar import policies, runtime, templates
from slurm_hadar.cli.batch_script import script_arguments
from slurm_hadar.cli.main import app
from slurm_hadar.cli.sbatch_options import LONG, SHORT
from slurm_hadar.config import Config, GpuType
from slurm_hadar.domain import declaration, steering
from slurm_hadar.domain.declaration import KEYS, Declaration

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *RECORDS,
]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
PACKAGE = ROOT / "slurm_hadar"
COMMANDS = typer.main.get_command(app)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
OPENINGS = ("$ ", "sudo ", "-u hadar ")


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _prose(name: str) -> str:
    return FENCE.sub("", _text(name))


def _spans(name: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", _prose(name))


def _rows(name: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    text = f"\n{_text(name)}".split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(^\|.*\n)+", text, re.M)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def _anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _typed(name: str) -> Iterator[list[str]]:
    """The words of every command of ours that a page tells the reader to type."""
    lines = _spans(name)
    for kind, body in FENCE.findall(_text(name)):
        if kind == "console":
            lines += [line for line in body.splitlines() if line.startswith("$ ")]
        elif kind in ("sh", "cron", "ini", "bash"):
            lines += body.splitlines()
    for line in lines:
        for opening in OPENINGS:
            line = line.removeprefix(opening)
        line = re.sub(r"^.*?/bin/(?=hadar )", "", line)
        if re.match(r"(hadar|hbatch) +[-\w]", line):
            words = re.split(r"\s(?:>>|\||#)\s", line.rstrip(":."))[0]
            yield shlex.split(words)


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_link_leads_somewhere(name):
    links = re.findall(r"\]\(([^)\s]+)\)", _prose(name))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (ROOT / name).parent / where if where else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def test_the_readme_leads_to_the_index_and_that_to_every_page():
    for name in ("docs/index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        assert f"({name})" in _text("README.md")
    for name in NAMES[1:]:
        if name != "docs/index.md" and "/decisions/" not in name:
            link = name.removeprefix("docs/") if "/" in name else f"../{name}"
            assert f"({link})" in _text("docs/index.md"), name


def test_the_readme_is_one_screen():
    assert len(_text("README.md").splitlines()) <= 60


def test_the_picture_of_the_readme_shows_what_was_measured():
    results = _text("docs/results.md").split("\n## Within Slurm's queue\n")[1]
    picture = _text("docs/measured.svg")
    shown = re.findall(r">(\d+\.\d)</text>", picture)
    rows = ("plain, typed", "plain", "hints", "moves", "exchange association")
    # The first row of each name is that of 0% unmanaged jobs.
    measured = [re.search(rf"^ +0%  {row} +([\d.]+)", results, re.MULTILINE)[1] for row in rows]
    assert shown == measured
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="22"', picture)]
    assert widths == pytest.approx([5 * float(hours) for hours in shown], abs=1)
    for hours in shown:
        assert hours in _text("README.md") and hours in picture.split("</desc>")[0]


def test_the_readme_leads_to_the_index_of_the_decision_records_and_that_to_each():
    assert "(docs/decisions/README.md)" in _text("README.md")
    for path in RECORDS:
        if path.name != "README.md":
            assert f"({path.name})" in _text("docs/decisions/README.md")


@pytest.mark.parametrize("name", ["overview.svg", "measured.svg"])
def test_a_picture_stands_alone(name):
    root = ElementTree.parse(ROOT / "docs" / name).getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"title", "desc"} <= tags and not tags & {"script", "image", "foreignObject"}
    text = _text(f"docs/{name}").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_is_one_that_there_is(name):
    for words in _typed(name):
        _known_to_hadar(words) if words[0] == "hadar" else _known_to_hbatch(words)


def _known_to_hadar(words: list[str]) -> None:
    command, rest = COMMANDS, words[1:]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        assert rest[0] in command.commands, " ".join(words)
        command, rest = command.commands[rest[0]], rest[1:]
    options = {option for parameter in command.params for option in parameter.opts}
    options |= {o for parameter in command.params for o in parameter.secondary_opts} | {"--help"}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, " ".join(words)


def _known_to_hbatch(words: list[str]) -> None:
    for word in words[1:]:
        name = word.partition("=")[0]
        if name.startswith("--hadar-"):
            key = name.removeprefix("--hadar-").replace("-", "_")
            assert key in (*KEYS, "help", "version", "plan"), " ".join(words)
        elif name == "--json":
            assert "--hadar-plan" in words
        elif name.startswith("--"):
            assert name[2:] in LONG, " ".join(words)
        elif name.startswith("-"):
            assert name[1] in SHORT, " ".join(words)


def test_the_test_sees_commands_at_all():
    seen = [words for name in NAMES for words in _typed(name)]
    assert {words[1] for words in seen if words[0] == "hadar"} >= {
        *("tick", "run", "plan", "status", "explain", "pin", "optout", "set", "check", "sandbox")
    }
    assert ["hadar", "retire", "--dry-run"] in seen
    assert ["hbatch", "train.sh"] in seen


@pytest.mark.parametrize("name", NAMES)
def test_every_option_in_code_marks_belongs_to_somebody(name):
    """``--no-act`` and the like, named without their command."""

    def all_options(command):
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        for below in getattr(command, "commands", {}).values():
            yield from all_options(below)

    known = {*all_options(COMMANDS), *(f"--{option}" for option in LONG)}
    known |= {f"--hadar-{key.replace('_', '-')}" for key in KEYS}
    # Of pip, of apt and of install.sh.
    known |= {
        "--no-install-recommends",
        "--no-deps",
        "--prefix",
        "--exchange",
        "--unlocked",
        "--keep-jobs",
        "--keep-running",
    }
    for span in _spans(name):
        if span.startswith("--"):
            for word in re.findall(r"--[a-z][a-z-]+[a-z]", span):
                assert word in known, span


def test_the_table_of_declaration_keys_is_complete_and_true():
    rows = _rows("docs/researcher.md", "## The keys")
    assert sorted(row[0].strip("`") for row in rows) == sorted(KEYS)
    default = Declaration()
    for key, shown, meaning in rows:
        name = key.strip("`")
        value = getattr(default, name)
        if value in ("", (), None, 0, 0.0) and not isinstance(value, bool):
            assert shown == "–", name
        else:
            encoded = declaration._text(value)
            assert shown == f"`{encoded}`", name
        assert meaning


def _keys(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            yield from _keys(type(value), f"{before}{name}.")
        else:
            yield before + name, value
        if before + name == "gpu_types":
            yield from _keys(GpuType, "gpu_types.NAME.")


def test_the_table_of_configuration_keys_is_complete_and_true():
    rows = _rows("docs/configuration.md", "# Every key of the configuration")
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert len(shown) == len(rows)
    wanted = dict(_keys(Config))
    assert shown.keys() == wanted.keys()
    for key, value in wanted.items():
        if value is None or value == {}:
            assert shown[key] == "none", key
        else:
            text = str(value) if isinstance(value, Path) else value
            assert shown[key] == json.dumps(text), key


@pytest.mark.parametrize("name", NAMES)
def test_every_dotted_configuration_key_exists(name):
    known = dict(_keys(Config))
    sections = {key.partition(".")[0] for key in known if "." in key} - {"gpu_types"}
    for span in _spans(name):
        match = re.match(r"(\w+)\.([a-z_]+)(?=$|[ =])", span)
        if match and match[1] in sections and not (match[2] == "conf" and match[1] == "slurm"):
            # `policies.X`, `exchange.progress` and the like are modules, not sections.
            if (PACKAGE / match[1]).is_dir() and (PACKAGE / match[1] / f"{match[2]}.py").exists():
                continue
            assert f"{match[1]}.{match[2]}" in known, span


@pytest.mark.parametrize("name", NAMES)
def test_every_toml_in_a_page_is_a_configuration(name):
    from slurm_hadar import config as configuration

    for kind, body in FENCE.findall(_text(name)):
        if kind == "toml":
            configuration.parse(body, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_ours_that_is_named_exists(name):
    folders = ("docs", "examples", "job_templates", "site_configs", "tests", "benchmarks")
    rooms = tuple(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    for span in _spans(name):
        if re.fullmatch(rf"({'|'.join((*folders, *rooms))})/[\w./-]*", span):
            assert (ROOT / span).exists() or (PACKAGE / span).exists(), span


def test_every_template_is_documented():
    text = _text("docs/researcher.md")
    pages = [_text(name) for name in NAMES]
    for name in ("plain", "pytorch_single", "pytorch_ddp"):
        assert name in templates.names()
        assert f"`job_templates/{name}.sh.j2`" in text
    for page in pages:
        for named in re.findall(r"job_templates/(\w+)\.sh\.j2", page):
            assert named in templates.names()


def test_policies_that_are_named_exist():
    row = next(
        row
        for row in _rows("docs/configuration.md", "# Every key of the configuration")
        if row[0] == "`controller.policy`"
    )
    named = re.findall(r'"(\w+)"', row[2])
    assert len(named) >= 3 and set(named) <= set(policies.names())


def test_the_example_of_the_researchers_page_is_python_and_uses_what_there_is():
    (body,) = [
        body for kind, body in FENCE.findall(_text("docs/researcher.md")) if kind == "python"
    ]
    tree = ast.parse(body)
    call = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Training"
    )
    known = inspect.signature(runtime.Training).parameters
    assert {keyword.arg for keyword in call.keywords} <= set(known)
    for word in re.findall(r"`run\.(\w+)\(", _text("docs/researcher.md")):
        assert hasattr(runtime.Training, word)


def test_the_example_of_the_researchers_page_runs_and_resumes(tmp_path, monkeypatch, capsys):
    (body,) = [
        body for kind, body in FENCE.findall(_text("docs/researcher.md")) if kind == "python"
    ]
    short = body.replace("samples=300000", "samples=6000")
    assert short != body
    monkeypatch.chdir(tmp_path)
    for name in ("HADAR_EXCHANGE", "HADAR_TRUE_RATES", "HADAR_EMULATION", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for attempt in (1, 2):
        exec(compile(short, "train.py", "exec"), {})
        assert f"6000 samples in {attempt} attempts" in capsys.readouterr().out


def test_the_script_of_the_researchers_page_declares_what_it_says():
    script = next(
        body for kind, body in FENCE.findall(_text("docs/researcher.md")) if kind == "bash"
    )
    words = [word for word, _ in script_arguments(script, "train.sh")]
    declared = declaration.parse(words, "train.sh")
    assert declared.checkpoint and declared.samples == 300_000 and declared.types == ("any",)


def test_the_architecture_names_modules_that_exist():
    text = _text("docs/architecture.md")
    named = re.findall(r"`(\w+/\w+\.py)`", text)
    assert len(named) >= 5
    for name in named:
        assert (PACKAGE / name).exists(), name


def test_the_signs_in_a_job_are_as_described():
    assert declaration.encode(Declaration(model="lm")) == "[hadar1 model=lm]"
    (shown,) = re.findall(r"AdminComment=(\[.*\])", _text("docs/operator.md"))
    ours = steering.decode(shown)
    assert ours is not None and ours.was and ours.wrote
    assert steering.merge("", ours) == shown


def test_a_script_that_declares_a_checkpoint_has_our_program_write_one():
    """Without it a training on idle nodes cannot be moved, and begins anew when it is sent away."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    bodies = [
        body
        for page in pages
        for _, body in FENCE.findall(page.read_text())
        if re.search(r"#HADAR .*checkpoint=yes", body)
        and re.search(r"train_(copies|digits)\.py", body)
    ]
    assert bodies
    assert all("--checkpoint" in body for body in bodies), bodies
