"""Every option of sbatch from Slurm 22.05 to 26.05, read from their sources (slurm_opt.c, opt.c).

Options that a release does not have do no harm here: its sbatch refuses them by itself.
"""

FLAG, VALUE, OPTIONAL = range(3)
"""Takes no value; takes one (``--x=v`` or ``--x v``); takes one only as ``--x=v``."""

_FLAGS = """
consolidate-segments contiguous external help hold ignore-pbs no-requeue overcommit oversubscribe
parsable quiet reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose
version wait
"""
_VALUES = """
account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint clusters
comment constraint container container-id container-type context core-spec cores-per-socket cpu-freq
cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus network nodefile nodelist nodes
ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode
output partition power prefer priority profile qos reservation resources segment signal
sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind
tres-per-task uid wait-all-nodes wckey wrap
"""
_OPTIONALS = "exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports"

LONG = {
    **dict.fromkeys(_FLAGS.split(), FLAG),
    **dict.fromkeys(_VALUES.split(), VALUE),
    **dict.fromkeys(_OPTIONALS.split(), OPTIONAL),
}
"""What each long option takes."""

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "H": "hold", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "O": "overcommit", "Q": "quiet", "S": "core-spec", "V": "version", "W": "wait", "a": "array",
    "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error", "h": "help", "i": "input",
    "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip

SAME = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}
"""Second names."""

ANSWERED = frozenset({"help", "usage", "version", "autocomplete"})
"""sbatch answers these and submits nothing."""

ONLY_ARGV = frozenset({"help", "quiet", "usage", "verbose", "version", "wrap"})
"""Read on the command line only: in the script's lines sbatch skips them."""

_LIKE_THE_OPTION = """
account acctg-freq batch cluster-constraint clusters consolidate-segments container container-id
container-type constraint core-spec cpus-per-gpu delay-boot distribution exclusive export
get-user-env gres gres-flags gpus gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task
hint job-name mem-bind mem-per-cpu mem-per-gpu network no-kill no-requeue open-mode overcommit
partition power profile qos requeue reservation signal spread-job spread-segments thread-spec
threads-per-core tres-bind tres-per-task use-min-nodes wait wait-all-nodes wckey error input output
ignore-pbs
"""
ENVIRONMENT = {
    **{"SBATCH_" + name.upper().replace("-", "_"): name for name in _LIKE_THE_OPTION.split()},
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}
"""Variables that sbatch reads like options."""
