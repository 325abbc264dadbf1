"""The SPANK plugin's C: no warning, and nothing that AddressSanitizer finds."""

import shutil
import subprocess
from pathlib import Path

from missing import missing

from slurm_hadar import plugins
from slurm_hadar.domain.declaration import KEYS

SOURCE = Path(plugins.__file__).parent / "c" / "hadar.c"
STRICT = ("-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined")
HARNESS = """
#include <stdio.h>
#include <string.h>
#include <slurm/spank.h>

extern int slurm_spank_init(spank_t, int, char **);
static spank_context_t context;
static unsigned int count;

spank_context_t spank_context(void) { return context; }

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
    (void)spank;
    count++;
    printf("%s\\n", option->name);
    if (strlen(option->usage) == 0 || (option->has_arg && strlen(option->arginfo) == 0))
        return ESPANK_BAD_ARG;
    return option->cb(option->val, option->has_arg ? "text" : NULL, 0) ? ESPANK_ERROR : 0;
}

int main(void)
{
    context = S_CTX_SLURMD;
    if (slurm_spank_init(NULL, 0, NULL) || count)
        return 1;
    context = S_CTX_ALLOCATOR;
    return slurm_spank_init(NULL, 0, NULL);
}
"""


def test_it_compiles_without_a_warning_and_runs_under_address_sanitizer(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not Path("/usr/include/slurm/spank.h").exists():
        missing("no C compiler or no slurm/spank.h (Debian: apt-get install libslurm-dev gcc)")
    (tmp_path / "harness.c").write_text(HARNESS)
    program = tmp_path / "harness"
    argv = [compiler, *STRICT, "-o", program, tmp_path / "harness.c", SOURCE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"hadar-{key.replace('_', '-')}" for key in KEYS]
    assert sorted(done.stdout.split()) == sorted(names)
