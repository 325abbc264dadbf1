"""The whole study: all advice in its order, and the result that is printed, written and drawn."""

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from slurm_hadar.tuning import (
    advice_cpus,
    advice_partitions,
    advice_settings,
    advice_types,
)
from slurm_hadar.tuning.advice import Advice, Recorded, Study
from slurm_hadar.tuning.replay import PolicyReplay, ReplayWorkload
from slurm_hadar.tuning.sacct_history import History
from slurm_hadar.tuning.usage import Share, TypeUse, Waits, jain, shares

_RULES = (
    advice_settings.accounting,
    advice_settings.features,
    advice_types.by_type,
    advice_partitions.policy,
    # Before the partition for idle nodes: that one holds whole nodes and needs no defaults.
    advice_cpus.defaults,
    advice_partitions.idle_nodes,
    advice_settings.kill_wait,
    advice_settings.cred_expire,
)
_WITHOUT_CONF = (advice_settings.features, advice_partitions.policy)
NO_TYPE = "(no type)"
RECORDED = "as recorded"


def advise(study: Study) -> list[Advice]:
    """All advice; what may stay as it is, is in ``study.fine`` afterwards."""
    rules = _RULES if study.site.known else _WITHOUT_CONF
    if not study.site.known:
        study.fine.append(
            "slurm.conf: nothing is known of partitions and settings; name it (--slurm-conf), or "
            "ask where Slurm answers"
        )
    return [found for rule in rules for found in rule(study)]


def result(study: Study, advice: Sequence[Advice], notes: Sequence[str]) -> dict[str, object]:
    """Plain data, as ``hadar tune --json`` prints it; units in the names of the keys."""
    draft, usage = study.draft, study.usage
    return {
        "site": {
            "sources": list(study.site.sources),
            "nodes": len(study.site.gpu_nodes),
            "gpus": {kind or NO_TYPE: number for kind, number in study.site.gpus.items()},
        },
        "history": _history(study),
        "gpu_types": [_type(one) for one in usage.types] if usage else [],
        "waits": [_waits(one) for one in usage.waits] if usage else [],
        "policies": _policies(study),
        "advice": [
            {
                "topic": one.topic,
                "slurm_conf": [
                    {"line": line.text, "where": line.where} for line in draft.lines(one.refs)
                ],
                "hadar_toml": list(one.toml),
                "why": one.why,
                "gain": one.gain,
                "basis": one.basis,
            }
            for one in advice
        ],
        "slurm_conf": [
            {"line": line.text, "where": line.where} for line in draft.everything()
        ],
        "fine": list(study.fine),
        "notes": list(notes),
    }  # fmt: skip


def _history(study: Study) -> dict[str, object] | None:
    history, usage, work = study.history, study.usage, study.work
    if history is None or usage is None:
        return None
    first = float(history.arrival_s[work.rows[0]]) if work else 0.0
    return {
        "name": history.name,
        "rows": history.rows,
        "gpu_jobs": len(history.ids),
        "left_out": dict(history.left_out),
        "from": _date(usage.from_s),
        "to": _date(usage.to_s),
        "span_h": (usage.to_s - usage.from_s) / 3600.0,
        "open_jobs": usage.open_jobs,
        "open_waited_h": usage.open_waited_h,
        "replayed_jobs": len(work.rows) if work else 0,
        "replayed_from": _date(first) if work else None,
        "restart_s": study.restart_s,
    }


def _date(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s).isoformat(timespec="seconds")


def _type(one: TypeUse) -> dict[str, object]:
    return {
        "type": one.kind or NO_TYPE,
        "gpus": one.gpus,
        "offered_gpu_h": one.offered_gpu_h,
        "used_gpu_h": one.used_gpu_h,
        "idle_gpu_h": one.idle_gpu_h,
        "idle_share": one.idle_gpu_h / one.offered_gpu_h if one.offered_gpu_h else None,
        "idle_while_others_waited_gpu_h": one.while_waited_gpu_h,
        "idle_in_long_gaps_gpu_h": one.gaps_gpu_h,
        "used_beyond_gpus": one.beyond,
    }


def _waits(one: Waits) -> dict[str, object]:
    return {
        "type": one.kind or NO_TYPE,
        "jobs": one.jobs,
        "jobs_that_waited": one.waited_jobs,
        "waited_h": one.waited_h,
        "waited_while_free_h": one.while_free_h,
        "waited_while_any_free_h": one.any_free_h,
        "examples": [{"job": job, "waited_while_free_h": hours} for job, hours in one.examples],
    }


def recorded(history: History, work: ReplayWorkload) -> Recorded:
    """What the accounting tells of the jobs that are replayed."""
    rows = np.array(work.rows, dtype=np.int64)
    return Recorded(
        name=RECORDED,
        jct_s=history.end_s[rows] - history.arrival_s[rows],
        run_s=work.run_s,
        gpu_s=history.run_s[rows] * history.gpus[rows],
    )


def _policies(study: Study) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    past, work = study.recorded, study.work
    if past is not None and work is not None:
        ended = np.isfinite(past.jct_s)
        jct, arrival = past.jct_s[ended], work.own.arrival_s[ended]
        figures: dict[str, object] = {
            "policy": past.name,
            "jobs": len(past.jct_s),
            "finished": len(jct),
            "avg_jct_h": _hours(jct.mean()) if len(jct) else None,
            "median_jct_h": _hours(np.percentile(jct, 50)) if len(jct) else None,
            "p99_jct_h": _hours(np.percentile(jct, 99)) if len(jct) else None,
            "makespan_h": _hours((arrival + jct).max() - arrival.min()) if len(jct) else None,
            "moves": None,
        }
        by = shares(work.accounts, past.jct_s, past.run_s, past.gpu_s)
        found.append(figures | _by_account(by))
    return found + [_simulated(study, run) for run in study.runs]


def _hours(seconds: float) -> float:
    return float(seconds) / 3600.0


def _simulated(study: Study, run: PolicyReplay) -> dict[str, object]:
    if run.outcome is None or study.work is None:
        return {"policy": run.policy, "why_not": run.why}
    out = run.outcome
    summary = out.summary()
    kept = ("jobs", "finished", "avg_jct_h", "median_jct_h", "p99_jct_h", "makespan_h", "moves")
    by = shares(study.work.accounts, out.jct_s, study.work.run_s, out.attained)
    return {"policy": run.policy, **{key: summary[key] for key in kept}} | _by_account(by)


def _by_account(by: Sequence[Share]) -> dict[str, object]:
    fairness = jain([1.0 / share.slowdown for share in by if share.slowdown > 0])
    gpu_h = sum(share.gpu_h for share in by)
    known = not math.isnan(gpu_h)
    return {
        "gpu_h": gpu_h if known else None,
        "fairness": None if math.isnan(fairness) else fairness,
        "accounts": [
            {
                "account": share.account,
                "jobs": share.jobs,
                "gpu_h": share.gpu_h if known else None,
                "avg_jct_h": share.mean_jct_h,
                "slowdown": share.slowdown,
            }
            for share in by
        ],
    }
