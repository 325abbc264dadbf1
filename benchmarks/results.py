"""Runs the benchmarks and writes what they print into docs/results.md.

``python -m benchmarks.results [NAME ...]``: all sections, or those named. A section that is not run
keeps what it had. Each stands beside the command that shows it again.
"""

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
_SITE = "--cluster v100=20,p100=20,k80=20 --gpus-per-node 4 --round 360 --restart-cost 10"
_HEAD = """# Results

Written by `python -m benchmarks.results`. Each table is what the command above it printed, on a
machine of 2 cores; seconds depend on it, the rest does not.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what to know before reading, and the command."""

    name: str
    title: str
    words: str
    command: str


SECTIONS = (
    Section(
        "replay",
        "Gavel replayed",
        "Our figures beside those of Gavel's own simulator, without restart costs.",
        "python -m benchmarks.replay",
    ),
    Section(
        "hadar",
        "Hadar against Gavel",
        "trace_480, the same costs for all. Aim: a makespan at least 1.20 times shorter than "
        "gavel_las's, a mean job time of at most 60.8 h.",
        f"hadar simulate jobs trace_480 {_SITE} --policy hadar --policy gavel_las "
        "--policy gavel_makespan --policy tiresias --policy srtf",
    ),
    Section(
        "own",
        "Our own policy, timetable",
        "One setting for all traces. Aims on trace_480: a mean job time of at most 42 h and a "
        "makespan of at most 275 h at once; trace_120: 19.5 h and 166 h. Bounds are of linear "
        "programmes: no schedule is better. Below: traces drawn anew, wrong speeds and wrong "
        "work, and elastic counts (aims: 39 h and 270 h). The rows of trace_480, as given and "
        "elastic, were run again with [precedence for running jobs without "
        "slack](decisions/makespan-of-timetable.md), and so were the rows noise; all other rows "
        "but that of trace_120 are older than it. The rows bootstrap are older than the moves "
        "to idle GPUs and than the rule that no job restarts for a place that gains it nothing.",
        "python -m benchmarks.own_policy",
    ),
    Section(
        "own_more",
        "timetable on two more traces",
        "trace_480_poisson: the jobs of trace_480, arriving over time. trace_480_hadarlike: 480 "
        "jobs of the models and sizes of Hadar's paper, all at once. The seconds are of a busy "
        "machine.",
        "python -m benchmarks.own_policy --parts given --traces "
        "slurm_hadar/simulator/data/trace_480_poisson.csv "
        "slurm_hadar/simulator/data/trace_480_hadarlike.csv",
    ),
    Section(
        "learned",
        "timetable with speeds that it learns",
        "60 jobs that may have other counts than they ask for, of which a policy knows the speed "
        "on the fewest GPUs only. With all speeds known beforehand (without `--learn`): 6.34 h and "
        "a makespan of 44.34 h. Before untried counts were grown into step by step and valued for "
        "what a trial may teach: 7.68 h and 72 h. The true speeds are outside of the form that is "
        "fitted: one training is 12 times as fast on 8 GPUs as on 1. The seconds are of a busy "
        "machine.",
        "hadar simulate jobs mixed_60 --cluster v100=8,p100=8,k80=8 --elastic --learn "
        "--policy timetable",
    ),
    Section(
        "fairness",
        "timetable with fairness as an objective",
        "120 jobs of 100 users on 24 GPUs, where all are busy. Without `--option fairness=2`, "
        "so as timetable decides by default: 38.24 h, a worst rho of 2.63 and a Jain index of "
        "0.57; with 1 in place of 2: 37.74 h, 1.78 and 0.66. Users who are behind an equal part "
        "count for more, at no cost in mean job time here.",
        "python -m benchmarks.hadare",
    ),
    Section(
        "decide",
        "Seconds per decision",
        "As many GPUs of 4 types as jobs. Aim: 1 s or less at 10,000, growth close to linear (a "
        "power of about 1).",
        "python -m benchmarks.decide --sizes 1000 3000 10000 --types 4 --rounds 5 "
        "--policy hadar --policy timetable --policy gavel_las",
    ),
    Section(
        "decide_fits",
        "Seconds per decision with fits",
        "The same with 10,000 jobs, each of which has its own step-time model, as the simulator "
        "has with `--learn`: all are fitted before the first decision, then the new jobs and 1% "
        "of the others, which reported anew. Aim: 1 s or less for both together. The machine "
        "was busy with other work, so the processor's seconds count. Before reasons, the plan "
        "of classes and the errors of fits were computed for all jobs at once, timetable took "
        "0.69 s of them (first, 0.20 s for the fits) and 0.48 s (median later) in the same "
        "minutes. What the controller's fits take: [untried speeds](#untried-speeds).",
        "python -m benchmarks.decide --fits --jobs 10000 --gpus 10000 --policy hadar "
        "--policy timetable",
    ),
    Section(
        "untried",
        "Untried speeds",
        "How far off the speeds are of GPUs on which a user's model never ran: the median and the "
        "90th percentile of the error of the logarithm, against Gavel's table, of which the model, "
        "the type or all counts above one are hidden. Where no table knows the model and the job "
        "declares its global batch, the controller infers them by the step-time model: the error "
        "falls most on the type that was measured, as more GPUs have less of the batch each. With "
        "the same batch on each GPU, and where a table knows the model, its estimate is the "
        "better one in nearly all cases and stays. About half of the errors are within the "
        "standard deviation that a fit says, and not two thirds: true jobs scale with kinks.",
        "python -m benchmarks.untried_speeds",
    ),
    Section(
        "queue",
        "Within Slurm's queue",
        "Slurm's own schedulers start the jobs, and hadar steers those that opted in, on a "
        "trace with a load of about 1.1. Share: of the gain that the policy, the default, has "
        "where it decides the order itself. One run; means over three are in [the "
        "decision](decisions/default-policy.md), with hadar's. Aims: 86% of it, and no "
        "distribution of ends worse than that of plain Slurm against itself (the row plain). "
        "The first is missed: with all jobs managed exchange association, which new sites get, "
        "has 72%, exchange all 80%, and preempt all, which stops running jobs besides, 84%. "
        "With 30% and 70% unmanaged jobs exchange association has 50% and 14%. With it managed "
        "jobs meet the second in all three parts at p50, p95, most and the share of late jobs, "
        "and unmanaged ones at 30%. At 70% these end later at p95 (22 h, against 19 h) and at "
        "most (518 h, against 279 h); fewer are late. In the rows with unmanaged jobs (plain, "
        "typed apart) makespans above 500 h are each one unmanaged job that names no type and "
        "that Slurm starts on K80s; which one differs from row to row, and moves the means by "
        "hours.",
        "python -m benchmarks.queue_order --policy timetable",
    ),
    Section(
        "queue_at_once",
        "Within Slurm's queue, all jobs at once",
        "The same on 120 jobs that all wait from the beginning. With all jobs managed exchange "
        "all reaches the first aim (86%), and exchange association has 85%; more jobs are late "
        "than under plain Slurm against itself (18% and 24%, against 15%), by less at p95. With "
        "30% unmanaged jobs these end later at p95 with hints and with moves alone, and sooner "
        "with each exchange and with preempt. With 70% they end sooner at p95 with exchange "
        "association (8 h, against 12 h), and later with hints, the other exchanges and preempt "
        "(13 to 24 h). Managed jobs are late more often than under plain Slurm against itself "
        "in most rows, while they end 25 to 33 h sooner in the mean with moves, exchanges and "
        "preempt.",
        "python -m benchmarks.queue_order --policy timetable --trace trace_120",
    ),
    Section(
        "queue_480",
        "Within Slurm's queue, 480 jobs at once",
        "trace_480, all jobs managed. Aims: 75% of the gain, and a makespan within 10% of that "
        "of the policy's own order. Both are missed: 57% with exchange association and 71% with "
        "exchange all, whose makespan is 341 h beside 270 h. Moves without an exchange add 2 "
        "points to hints. Fewer jobs are late than under plain Slurm against itself; those that "
        "are, with exchanges, by more at p95 (66 and 47 h, against 34 h).",
        "python -m benchmarks.queue_order --policy timetable --trace trace_480 --unmanaged 0 "
        '--rows "plain,hints,moves,exchange association,exchange all,the policy\'s order"',
    ),
    Section(
        "queue_wait",
        "Within Slurm's queue, jobs that wait for a type",
        "The loaded trace, all jobs managed, with `queue.max_wait_s` of 1,000 h. Waiting adds 9 "
        "points to exchange association and 4 to exchange all, which is about the "
        "[noise](decisions/no-rescue.md) of one run.",
        "python -m benchmarks.queue_order --policy timetable --unmanaged 0 --wait 1000 "
        '--rows "exchange association,exchange all"',
    ),
    Section(
        "queue_wrong",
        "Within Slurm's queue, with wrong estimates",
        "The policy's speeds are off by 20%, and half of the jobs declare twice or half their "
        "work. Aim: as above, 86% and no distribution of ends worse than the row plain. The "
        "first is missed: with all jobs managed exchange association has 61%, exchange all 76% "
        "and preempt 80%, with 30% unmanaged jobs 50 to 59%. The second holds at 0% in each row "
        "that steers, and for managed jobs at 30% except with hints (30% late, against 26%). "
        "Unmanaged ones end no later at p95 with exchange association (18 h, against 20 h), "
        "later in the other rows (23 to 70 h), and later at most in each row; more of them are "
        "late with hints, moves and exchange all.",
        "python -m benchmarks.queue_order --policy timetable --wrong --unmanaged 0,0.3 --rows "
        '"plain,hints,moves,'
        "exchange association,exchange all,preempt association,the policy's order\"",
    ),
    Section(
        "together",
        "Every policy on every kind of workload",
        "All costs on, three seeds. Aim for timetable: first, or within 2% of the first, in "
        "mean job time and in makespan on each ground, by the means of the seeds. It is so on "
        "all six.",
        "python -m benchmarks.together",
    ),
    Section(
        "synergy",
        "CPUs and memory",
        "Mean job time against gpu_proportional. Aims: 2 times better where 80% of the jobs are "
        "CPU-hungry and the load is high; tune within 10% of opt; no job below its fair share. "
        "The same for the last 600 of 2,400 jobs, as the paper looks at a long stream "
        "([Synergy](synergy.md)).",
        "python -m benchmarks.synergy",
    ),
    Section(
        "ones",
        "Batch size as a resource",
        "Elastic jobs on 64 GPUs. Aims: 1.3 times better than the best of tiresias, srtf and "
        "gavel_las at the median, half of the gain with a wrong noise scale.",
        "python -m benchmarks.ones",
    ),
    Section(
        "hare",
        "Rounds dealt over unequal GPUs",
        "Weighted mean job time against gangs on whole types. Aim: 2 times better. Met against "
        "first come, first served in most cells; missed against gangs that preempt: there the "
        "bound itself is near ([Hare](hare.md)).",
        "python -m benchmarks.hare",
    ),
    Section(
        "network",
        "The network",
        "256 GPUs in racks with oversubscribed uplinks. Aims: no cell more than 2% worse than the "
        "better of always-consolidate and never-wait; the paper's best are -69% makespan, -83% job "
        "time, -98% communication. All cells meet the first; gangs larger than a "
        "node must use the cards, so communication cannot go below 28% here "
        "([network](network.md)).",
        "python -m benchmarks.network",
    ),
    Section(
        "quality",
        "Copies: what averaging costs",
        "Three copies of speeds 4:2:1 against one run alone with the same number of samples, 10 "
        "seeds. Aim: no worse than 1 point in the mean, and the same comparison fails where the "
        "averaging is sabotaged ([copies](copies.md)).",
        "python -m benchmarks.copies_quality",
    ),
    Section(
        "copies",
        "Copies: speed",
        "Live on a sandbox, three nodes of speeds 4:2:1 against the fastest alone. Aim: 1.6 times "
        "sooner; 1.75 is the ideal.",
        "python -m benchmarks.copies_speed --seconds 120",
    ),
    Section(
        "backfill",
        "Idle nodes, live",
        "Two sandboxes side by side with the same stream of short jobs. Aims: 80% of the idle time "
        "in gaps longer than a start-up is trained; jobs start at most 1 s later at the median and "
        "3 s at the 95th percentile; 30 evictions ([backfill](backfill.md)).",
        "python -m benchmarks.backfill --seconds 600 --gap 80",
    ),
    Section(
        "live",
        "Live against simulated",
        "90 trainings of about equal length on a sandbox and in the simulator. Aims: each job's "
        "end within 10% at the median, the makespan within 5%. Both hold for this trace. With "
        "60 trainings of 15 to 50 s, as before, the second cannot: the last one takes 43 s on a "
        "p100 and 160 s on a k80, and tenths of a second decide which of them is free. Two live "
        "runs of that trace ended after 347 and 238 s under Slurm alone and after 285 and 331 s "
        "under gavel_las, and 15 simulations with other start-up times after 245 to 354 s. The "
        "trace of 90 was chosen among seven for its small spread in the simulator, before it "
        "ran live; with seed 3 single simulations are 17% off (plain), so 5% is not to be "
        "expected of every trace. The second table has the spread of 15 simulations, and when "
        "95% of the work is done. Slurm's batch_sched_delay is 0 in these runs, since its 3 s "
        "would be a minute. Jobs that differ by more run on another type. The runs of 2026-11-29 "
        "had two other programs beside them, at the lowest priority.",
        "python -m benchmarks.live_and_simulated --again --side-by-side 2",
    ),
    Section(
        "hbatch",
        "hbatch beside sbatch",
        "The time that hbatch adds to a submit. Aim: 25 ms at the median, 100 ms at the 95th "
        "percentile.",
        "python -m benchmarks.hbatch",
    ),
    Section(
        "tick",
        "One tick on a large cluster",
        "2,000 nodes are defined, a managed job holds each of them, and 5,000 more wait. The first "
        "tick sends lists of partitions to those that are next, the second nothing. Before the "
        "third ten running jobs have ended. RPCs are all that slurmctld answered meanwhile "
        "(`sdiag`).",
        "python -m benchmarks.tick --nodes 2000 --jobs 5000",
    ),
)


def _run(section: Section) -> str:
    words = shlex.split(section.command)
    program = Path(sys.executable).parent / words[0]
    done = subprocess.run(
        [str(program), *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=_PAGE.parents[1],
    )
    if not done.stdout.strip():
        raise SystemExit(f"{section.command} printed nothing:\n{done.stderr[-2000:]}")
    table = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return (
        f"## {section.title}\n<!-- {section.name} -->\n{section.words}\n\n"
        f"`{section.command}`\n\n```text\n{table}\n```\n"
    )


def _present() -> dict[str, str]:
    """Section -> its text in the page as it is."""
    if not _PAGE.exists():
        return {}
    parts = re.split(r"(?m)^(?=## )", _PAGE.read_text())[1:]
    found = {}
    for part in parts:
        name = re.search(r"<!-- (\w+) -->", part)
        if name:
            found[name[1]] = part.rstrip() + "\n"
    return found


def main() -> None:
    """Write the page anew."""
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="NAME", help=", ".join(names))
    wanted = parser.parse_args().sections or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for section in SECTIONS:
        if section.name in wanted:
            print(f"{section.title}: {section.command}", file=sys.stderr, flush=True)
            text = _run(section)
            # Read as late as can be: another run may have written its sections meanwhile.
            page = _present() | {section.name: text}
            _PAGE.write_text("\n".join([_HEAD, *(page[n] for n in names if n in page)]))


if __name__ == "__main__":
    main()
