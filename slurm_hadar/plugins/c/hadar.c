/*
 * The options --hadar-* of sbatch, srun and salloc.
 *
 * This only makes the options known to Slurm. Slurm hands their values to cli_filter.lua
 * (options.spank.hadar) and to job_submit.lua (spank_job_env), and one of the two writes the
 * declaration into the job's Comment. Nothing here looks at a value or can stop a job.
 */
#include <stddef.h>

#include <slurm/spank.h>

SPANK_PLUGIN(hadar, 1)

static int accept_value(int value, const char *text, int remote)
{
	(void)value;
	(void)text;
	(void)remote;
	return 0;
}

#define OPTION(name, shown, help) {name, shown, help, 1, 0, accept_value}

static struct spank_option options[] = {
	OPTION("hadar-model", "NAME", "slurm-hadar: model's name in the profiles"),
	OPTION("hadar-types", "LIST", "GPU types that will do, or any"),
	OPTION("hadar-gpus", "N[-M]", "GPUs that the job can run with"),
	OPTION("hadar-gpu-mem", "SIZE", "least memory per GPU, such as 24G"),
	OPTION("hadar-batch", "N[:M]", "global batch in samples, or its range"),
	OPTION("hadar-samples", "N", "total work in samples"),
	OPTION("hadar-epochs", "N", "total work in epochs"),
	OPTION("hadar-dataset-size", "N", "samples of one epoch"),
	OPTION("hadar-checkpoint", "HOW", "how it saves: yes, signal, restart, watch:PATH"),
	OPTION("hadar-signal", "NAME", "signal to save on, such as B:USR1@60"),
	OPTION("hadar-lose", "S", "seconds of work that a move may cost"),
	OPTION("hadar-checkpoint-exit-code", "N", "exit code: saved, start me again"),
	OPTION("hadar-max-requeues", "N", "most requeues before its time limit, where allowed"),
	OPTION("hadar-progress", "TEXT", "its output: step={step*64}"),
	OPTION("hadar-restart-cost", "S", "seconds that a restart costs"),
	OPTION("hadar-wait", "S", "longest wait for a faster GPU type"),
	OPTION("hadar-cost", "any", "it may be billed more than the request"),
	OPTION("hadar-fork", "N[-M]", "most copies that may train side by side"),
	OPTION("hadar-tasks", "N", "equal tasks of a round, dealt over its GPUs"),
	OPTION("hadar-backfill", "yes|no", "may train on idle nodes"),
	OPTION("hadar-nodes", "N[-M]", "idle nodes that it can train on"),
	OPTION("hadar-cpus", "N[-M]", "CPUs per GPU"),
	OPTION("hadar-mem", "SIZE[-SIZE]", "memory per GPU"),
	OPTION("hadar-pin", "yes|no", "leave the job where it is"),
	{"hadar-off", NULL, "leave this job alone", 0, 0, accept_value},
};

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	unsigned int i;

	(void)argc;
	(void)argv;
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_REMOTE:
	case S_CTX_ALLOCATOR:
		break;
	default:
		return 0;
	}
	for (i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		(void)spank_option_register(spank, &options[i]);
	return 0;
}
