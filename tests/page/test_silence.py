"""How the page detects a job that no worker computes any more."""

from tests.page.conftest import Visit

SILENCE = """
async () => {
  const { Silence } = await import("./jobs/section_job.js")
  let now = 0
  performance.now = () => now
  const silence = new Silence()
  const seen = []
  const at = (time, act) => { now = time; act(); seen.push(silence.isLong) }
  at(15000, () => silence.note(false))
  at(17000, () => silence.note(false))
  at(18000, () => silence.note(true))
  at(33000, () => silence.note(false, "running 5"))
  at(50000, () => silence.note(false, "running 5"))
  at(51000, () => silence.note(false, "running 6"))
  return seen
}
"""
MAY_COMPUTE = """
async (workers) => {
  const { mayCompute } = await import("./service/pool.js")
  return workers.map((worker) => mayCompute(worker, "mine"))
}
"""


def test_silence_is_long_without_news_from_the_workers_or_the_job(visit: Visit):
    assert visit.open().evaluate(SILENCE) == [False, True, False, False, True, False]


def test_a_worker_may_compute_a_job_unless_it_names_only_others(visit: Visit):
    mine, other = {"id": "mine"}, {"id": "other"}
    expected = {
        True: [{"jobs_running": [other, mine], "num_jobs_running": 2}, {},
               {"jobs_running": [other], "num_jobs_running": 2}],
        False: [{"jobs_running": [], "num_jobs_running": 0}, {"role": "finetune"},
                {"jobs_running": [other], "num_jobs_running": 1}],
    }  # fmt: skip
    for may, workers in expected.items():
        assert visit.open().evaluate(MAY_COMPUTE, workers) == [may] * len(workers)
