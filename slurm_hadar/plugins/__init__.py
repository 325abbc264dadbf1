"""What Slurm itself loads, each part optional: job_submit and cli_filter in Lua, SPANK options,
prolog, epilog and task prolog; and the command that adds them to a site and takes them back.
"""
