"""Every parser of something that comes from outside, with real input to damage.

A parser takes bytes and a folder of its own. What is a file to it, it is handed as a file.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from benchmarks.fuzz import asked, hostile, mutations, reports, seeds, ticked
from benchmarks.fuzz.journal import damage, read_journal
from slurm_hadar import config, templates
from slurm_hadar.cli import batch_script, sbatch_parser, wrapper_site
from slurm_hadar.domain import declaration, steering
from slurm_hadar.exchange import heartbeat, plan_file, progress
from slurm_hadar.plugins import slurm_conf
from slurm_hadar.profiles import cpu_table, gpu_sampling_files, table
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.idle import fragments, trainers
from slurm_hadar.simulator.traces import open_sacct, open_trace
from slurm_hadar.slurm import (
    array_tasks,
    hosts,
    jobs,
    minutes,
    pyslurm_records,
    records,
    times,
    tres,
)
from slurm_hadar.tuning import conf, sacct_history, simulated, site

Read = Callable[[bytes, Path], object]
_TYPES = ("v100", "p100", "k80")
_UID = os.getuid()


@dataclass(frozen=True)
class Parser:
    """``read`` takes input and a folder; ``damage`` makes bad input of one of ``seeds``."""

    name: str
    read: Read
    source: Sequence[bytes] | Callable[[], bytes]
    damage: mutations.Damage = mutations.text

    @property
    def seeds(self) -> Sequence[bytes]:
        """Good input; where it takes long to make, it is made when it is first asked for."""
        return [self.source()] if callable(self.source) else self.source


def _as_text(read: Callable[[str], object]) -> Read:
    """What comes through a pipe of Slurm's: bytes that are no UTF-8 are replaced there."""
    return lambda data, _: read(data.decode(errors="replace"))


def _as_words(read: Callable[[list[str]], object]) -> Read:
    """What the shell hands over: any bytes."""
    return lambda data, _: read(data.decode(errors="surrogateescape").split("\n"))


def _as_file(name: str, read: Callable[[Path], object]) -> Read:
    def through_file(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return through_file


def _merged(text: str) -> object:
    """A declaration from a Comment goes back into it, and out again the same."""
    found = declaration.decode(text)
    if found is not None:
        assert declaration.decode(declaration.merge(text, found)) == found
    return found


def _steered(text: str) -> object:
    found = steering.decode(text)
    return found and steering.decode(steering.merge(text, found))


def _declared(words: list[str]) -> object:
    found = declaration.parse(words, "--hadar")
    assert declaration.decode(declaration.encode(found)) == found
    return found


def _notations(text: str) -> None:
    """Slurm's small notations, each of which may refuse what the others take."""
    for read in (
        hosts.expand, tres.parse_gpus, times.parse_date, times.parse_duration,
        array_tasks.task_ranges, lambda words: jobs.least_nodes(words, 1), tres.bare,
        lambda words: tres.prefixed(words, (24, 11, 0)),
    ):  # fmt: skip
        for line in text.split("\n")[:20]:
            seeds.one_of(lambda read=read, line=line: read(line))  # type: ignore[misc]


def _squeue(text: str) -> object:
    found = jobs.parse(text, None, 100)
    assert all(job.gpu_count < 10**30 for job in found[0])
    return found


def _tuned(text: str) -> object:
    return site.of_conf(conf.parse(text, Path("/etc/slurm/slurm.conf")))


def _installed(text: str) -> object:
    where = Path("/etc/slurm/slurm.conf")
    return slurm_conf.settings(text, where), slurm_conf.node_features(text, where)


@cache
def _site() -> site.SlurmSite:
    return site.of_conf(conf.parse(seeds.SLURM_CONF, Path("/nowhere/slurm.conf")))


@cache
def _rates() -> Rates:
    return Rates(table.shipped())


def _trace(path: Path) -> object:
    return open_trace(str(path), _TYPES, _rates(), elastic=path.stat().st_size % 2 == 0)


def _past(path: Path) -> object:
    return open_sacct(str(path), _TYPES, _rates())


def _jct(path: Path) -> object:
    past = simulated.SimulatedHistory("mixed_60", path, cluster.parse("v100=8,p100=8,k80=8"))
    return simulated.read(past, _rates(), 10)


def _exchange(
    name: str, read: Callable[[Path], object], beside: Mapping[str, bytes] = MappingProxyType({})
) -> Read:
    """A file in an exchange folder of its own; ``beside``: what else lies there."""

    def through_folder(data: bytes, folder: Path) -> object:
        exchange = folder / name.partition(".")[0]
        exchange.mkdir(exist_ok=True)
        for other, content in {**beside, name: data}.items():
            (exchange / other).write_bytes(content)
        return read(exchange)

    return through_folder


def _script(data: bytes, _: Path) -> None:
    header = sbatch_parser.read_header(data)
    sbatch_parser.read_directives(header.words)
    words = batch_script.script_arguments(data.decode(errors="replace"), "train.sh")
    for word, where in words[:50]:
        declaration.parse([word], where)


def _typed(words: list[str]) -> object:
    line = sbatch_parser.read_argv(words)
    return sbatch_parser.merged_options(line, {}, line)


def _wrapper(path: Path) -> object:
    return wrapper_site.read_site(str(path), "/nowhere/hadar.toml")


def _acts(folder: Path) -> object:
    found = wrapper_site.read_site(str(folder / "none"), "")
    assert found is None
    there = wrapper_site.WrapperSite(
        {**seeds.WRAPPER, "exchange_dir": str(folder), "controller_uid": _UID}
    )
    return wrapper_site.controller_is_active(there, 1.7e9), heartbeat.read_heartbeat(folder, _UID)


def _template(words: list[str]) -> object:
    described = templates.describe("pytorch_single")
    return templates.render("pytorch_single", templates.from_arguments(described, words))


def _checkpoint(path: Path) -> object:
    from slurm_hadar.runtime import checkpoint

    return checkpoint.load(path, lambda _: None)


def _plan(folder: Path) -> object:
    return plan_file.read_plan(folder, "84_2", (_UID,))


def _models(path: Path) -> object:
    return trainers.read_trainers(path, "ShuffleNet")


def all_parsers(torch: bool = True) -> list[Parser]:
    """All of them; ``torch``: checkpoints too, whose reader needs PyTorch."""
    found = list(_parsers())
    if torch:
        read = _as_file("checkpoint.pt", _checkpoint)
        found.append(Parser("checkpoint", read, seeds.checkpoint, mutations.binary))
    return found


def whole_ticks() -> list[Parser]:
    """A tick of each policy; trainings on idle nodes are in all of them. They take far longer."""
    return [
        Parser(f"tick, {name}", ticked.ticked, [ticked.scene(name)], hostile.damage)
        for name in ticked.POLICIES
    ]


def _parsers() -> Iterator[Parser]:
    tree, binary = mutations.tree, mutations.binary
    answers: Mapping[str, Sequence[bytes]] = seeds.answers()
    yield Parser("declaration words", _as_words(_declared), [seeds.WORDS])
    yield Parser("declaration in a Comment", _as_text(_merged), seeds.COMMENTS)
    yield Parser("steering in an AdminComment", _as_text(_steered), seeds.ADMIN_COMMENTS)
    yield Parser("constraint", _as_text(ticked.constrained), ticked.CONSTRAINTS)
    yield Parser("batch script", _script, [seeds.SCRIPT])
    yield Parser("sbatch command line", _as_words(_typed), [seeds.ARGV])
    yield Parser("template values", _as_words(_template), [seeds.VALUES])
    yield Parser("configuration", _as_file("hadar.toml", config.load), seeds.site_configs())
    yield Parser("wrapper's JSON, to check", asked.is_current, [seeds.WRAPPER_JSON], tree)
    yield Parser("wrapper's JSON", _as_file("hadar.json", _wrapper), [seeds.WRAPPER_JSON], tree)
    for release in seeds.RELEASES:
        yield Parser(f"squeue {release}", _as_text(_squeue), answers[f"{release}/jobs"], tree)
    yield Parser("scontrol show node", _as_text(records.nodes), answers["nodes"])
    yield Parser("scontrol show partition", _as_text(records.partitions), answers["partitions"])
    yield Parser(
        "scontrol show reservation", _as_text(records.reservations), answers["reservations"]
    )
    yield Parser("scontrol show config", _as_text(records.settings), answers["config"])
    yield Parser("scontrol show topology", _as_text(records.racks), answers["topology"])
    yield Parser("squeue -O", _as_text(pyslurm_records.requests), [seeds.REQUESTS])
    yield Parser("sacctmgr, limits", _as_text(asked.limited), [seeds.LIMITS])
    yield Parser("scontrol show assoc_mgr", _as_text(asked.minutes_of), [seeds.MINUTES])
    yield Parser("squeue, TRES", _as_text(minutes.parse_use), [seeds.USE])
    for name, answer in seeds.COMMANDS.items():
        yield Parser(f"answer of {name}", _as_text(asked.COMMANDS[name]), [answer])
    yield Parser("sbatch --test-only", asked.start, [seeds.TEST_ONLY])
    yield Parser("Slurm's notations", _as_text(_notations), [seeds.NOTATIONS])
    yield Parser(
        "file of nodes",
        _as_file("nodes.txt", lambda path: site.with_nodes(site.NOTHING, path)),
        [*answers["nodes"], *answers["one node"], seeds.SINFO, seeds.scontrol_lines()],
    )
    yield Parser("slurm.conf", _as_text(_tuned), [seeds.SLURM_CONF.encode()])
    yield Parser("slurm.conf, to install", _as_text(_installed), [seeds.SLURM_CONF.encode()])
    yield Parser(
        "sacct, to tune",
        _as_text(lambda text: sacct_history.read(text, "sacct.txt", _site())),
        answers["sacct"],
    )
    yield Parser("sacct, to simulate", _as_file("sacct.txt", _past), seeds.sacct_without_bars())
    yield Parser("trace", _as_file("trace.csv", _trace), [seeds.NATIVE])
    yield Parser("trace of Gavel", _as_file("trace.csv", _trace), [seeds.gavel()])
    yield Parser("times of a simulation", _as_file("jct.csv", _jct), [seeds.jct()])
    yield Parser("fragments", _as_file("idle.csv", fragments.read_fragments), [seeds.FRAGMENTS])
    yield Parser(
        "fragments, gzipped",
        _as_file("idle.csv.gz", fragments.read_fragments),
        [seeds.zipped(seeds.FRAGMENTS)],
        binary,
    )
    yield Parser(
        "trainers", _as_file("trainers.json", trainers.read_trainers), [seeds.TRAINERS], tree
    )
    yield Parser("curves by model", _as_file("models.json", _models), [seeds.MODELS], tree)
    yield Parser("pretend cluster", _as_text(cluster.parse), [b"v100=20,p100=20,k80=8"])
    yield Parser("throughput table", _as_file("table.json", table.load), [seeds.RATES], tree)
    yield Parser("CPU table", _as_file("cpu.json", cpu_table.load), [seeds.CPU_RATES], tree)
    yield from _in_the_exchange_folder()
    yield Parser("journal", read_journal, seeds.journal, damage)


def _in_the_exchange_folder() -> Iterator[Parser]:
    reports_of = {
        "progress.84_2.aa.json": seeds.versioned(asdict(seeds.PROGRESS)),
        "gpu.84.aa.json": seeds.versioned(seeds.GPU_USE),
        "plan.84_2.json": seeds.versioned(seeds.PLAN),
        "heartbeat.json": seeds.versioned(seeds.HEARTBEAT),
    }
    readers: Mapping[str, Callable[[Path], object]] = {
        "progress.84_2.aa.json": lambda folder: progress.read_progress(folder, "84_2", _UID),
        "gpu.84.aa.json": lambda folder: gpu_sampling_files.read_all_uses(folder, {"84": _UID}),
        "plan.84_2.json": _plan,
        "heartbeat.json": _acts,
    }
    for name, read in readers.items():
        yield Parser(name, _exchange(name, read), [reports_of[name]], mutations.tree)
    for name, other in (list(reports_of)[:2], list(reports_of)[1::-1]):
        taken = _exchange(name, reports.taken_in, {other: reports_of[other]})
        yield Parser(f"{name}, taken in", taken, [reports_of[name]], mutations.tree)
    name = "steer.84_2.json"
    yield Parser(name, _exchange(name, reports.steered), seeds.steered(), mutations.tree)
