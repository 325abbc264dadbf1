"""The cluster's nodes as one user may see them, beside what ``hadar status`` shows."""

from collections import defaultdict
from collections.abc import Mapping

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.domain.job import JobState
from slurm_hadar.reports.cluster import HIDDEN, ClusterView, NodeRow


def cluster_view(sight: Sight, viewer: Viewer) -> ClusterView:
    """All that this user may see of one moment."""
    found = overview(sight, viewer)
    jobs = sight.observation.jobs
    waiting = (jobs[row.id] for row in found.rows if jobs[row.id].state is JobState.PENDING)
    return ClusterView(
        overview=found,
        nodes=[] if viewer.hidden_nodes else _shared_nodes(sight, viewer),
        expected_s={job.id: job.start_s for job in waiting if job.start_s > sight.observation.now},
        interval_s=sight.config.controller.interval_s,
    )


def _shared_nodes(sight: Sight, viewer: Viewer) -> list[NodeRow]:
    if viewer.hidden_jobs and not viewer.everything:
        return _nodes(sight.observation, viewer)
    if not sight.nodes:
        sight.nodes.extend(_nodes(sight.observation, viewer))
    return sight.nodes


def _nodes(observation: Observation, viewer: Viewer) -> list[NodeRow]:
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for job in observation.jobs.values():
        id_ = job.id if viewer.sees(job) else HIDDEN
        for name, kinds in job.gpus.items():
            held[name][id_] += sum(kinds.values())
    busy = _busy(observation)
    return [
        NodeRow(
            name=node.name,
            state=node.state,
            usable=node.usable,
            gpus=node.gpus,
            used=node.gpus_used,
            jobs=dict(held.get(node.name, {})),
            partitions=node.partitions,
            busy=busy.get(node.name),
        )
        for node in observation.nodes.values()
        if node.gpus
    ]


def _busy(observation: Observation) -> Mapping[str, float]:
    """Node -> mean utilization of its GPUs, as far as their jobs report it."""
    found: dict[str, list[float]] = defaultdict(list)
    for uses in observation.gpus.values():
        for use in uses:
            if not use.finished:
                known = [one.utilization for one in use.gpus if one.utilization is not None]
                found[use.host] += known
    return {host: sum(values) / len(values) for host, values in found.items() if values}
