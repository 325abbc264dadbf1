"""What the owner of a submit can hardly mean as it stands. hbatch imports it late: most of it is
looked for while sbatch runs."""

from __future__ import annotations

from slurm_hadar.cli.count_doubts import of_one_count, of_submit
from slurm_hadar.cli.declaration_warnings import FEW_GPUS, doubts, gpus_of_nodes, repeated
from slurm_hadar.cli.request_warnings import of_the_nodes, of_the_request
from slurm_hadar.cli.signal_warnings import unheard
from slurm_hadar.domain.declaration import script_arguments
from slurm_hadar.domain.declaration_values import CountList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_hadar.cli.submit import Submit
    from slurm_hadar.domain.declaration import Declaration


def doubts_of(submit: Submit, declared: Declaration) -> list[str]:
    """A sentence for each likely mistake."""
    words = _script_words(submit)
    return [
        *repeated(words),
        *doubts(declared, _typed(submit, words), submit.held, submit.site),
        *of_the_nodes(declared, submit.held, submit.site),
        *unheard(declared, submit.held, submit.body),
        *(_of_counts(declared, submit) or of_the_request(declared, submit.held)),
    ]


def _of_counts(declared: Declaration, submit: Submit) -> list[str]:
    """Where more than a usual range of GPUs is declared, or whole nodes are asked for, Slurm is
    asked for the nodes; some 20 ms."""
    gpus, held = declared.gpus, submit.held
    plain = gpus is None or (
        gpus[0] == 1 and gpus[-1] <= FEW_GPUS and not isinstance(gpus, CountList)
    )
    several = gpus is not None and held.get("nodes", "1") not in ("1", "1-1")
    if plain and not several and "exclusive" not in held:
        found = of_one_count(declared, held)
    else:
        partition = held.get("partition") or ""
        found = of_submit(
            declared, held, lambda: gpus_of_nodes(submit.program(), submit.environment, partition)
        )
    return [found] if found else []


def _script_words(submit: Submit) -> list[tuple[str, str]]:
    """The arguments of the ``#HADAR`` lines, with where each stands."""
    if not submit.header.declares:
        return []
    return script_arguments(submit.body.decode(errors="replace"), submit.name)


def _typed(submit: Submit, words: list[tuple[str, str]]) -> dict[str, str]:
    """Key -> value of the declaration, as its owner wrote it."""
    parts = [word.partition("=") for word, _ in words]
    pairs = [(key, value) for key, _, value in parts]
    pairs += [(key, value or "") for key, value in (*submit.in_script, *submit.line.ours)]
    return {key.replace("-", "_"): value for key, value in pairs}
