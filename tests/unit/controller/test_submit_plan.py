"""``hbatch --hadar-plan``: the rows of its table."""

from hand_made import CONFIG, NOW, RATES, job, observation, request_of

from slurm_hadar.controller.submit_plan.hypothetical_job import ID, Asked
from slurm_hadar.controller.submit_plan.plan import Submission, _Question, _rows
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.expected_start import Start


def test_one_place_has_one_start_although_slurm_is_asked_twice():
    """Its answers are of different moments."""
    answers = {"v100": ("v1", 1790.0), "k80": ("k1", 95.0), "p100": ("p1", 70.0)}

    def start(more):
        kind = next(word.partition("=")[2] for word in more if word.startswith("--constraint="))
        nodes, later = answers[kind]
        return Start(NOW + later, nodes, "gpu")

    asks = Asked({"gres": "gpu:1"}, None, "train.sh", 1000, "ada")
    submission = Submission(asks, start, (), (), True, "", ())
    found = observation([job(ID)])
    want = request_of(found.jobs[ID], Steering())
    question = _Question(submission, CONFIG, found, RATES, found.jobs[ID], want)
    alone = Start(NOW + 59.0, "p1", "gpu")
    rows = {row.gpu_type: row for row in _rows(question, {}, alone) if row.gpus == 1}
    assert rows["p100"].start == alone and rows["p100"].finish_s == NOW + 59.0 + 7200.0
    assert rows["v100"].start.start_s == NOW + 1790.0 and rows["k80"].start.nodes == "k1"
