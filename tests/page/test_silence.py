"""What the page takes for a job that nobody computes any more."""

from tests.page.conftest import Visit

SILENCE = """
async () => {
  const { Silence } = await import("./silence.js")
  let now = 0
  const silence = new Silence(() => now)
  const seen = []
  const at = (time, act) => { now = time; act(); seen.push(silence.isLong) }
  at(15000, () => silence.look(false))
  at(17000, () => silence.look(false))
  at(18000, () => silence.look(true))
  at(33000, () => silence.hear(["running", 5]))
  at(50000, () => silence.hear(["running", 5]))
  at(51000, () => silence.hear(["running", 6]))
  return seen
}
"""
MAY_COMPUTE = """
async (workers) => {
  const { mayCompute } = await import("./pool.js")
  return workers.map((worker) => mayCompute(worker, "mine"))
}
"""


def test_silence_is_long_where_neither_workers_nor_the_job_told_anything_new(visit: Visit):
    assert visit.open().evaluate(SILENCE) == [False, True, False, False, True, False]


def test_a_worker_may_compute_a_job_unless_it_names_all_that_it_computes(visit: Visit):
    mine, other = {"id": "mine"}, {"id": "other"}
    told = {
        True: [{"jobs_running": [other, mine], "num_jobs_running": 2}, {},
               {"jobs_running": [other], "num_jobs_running": 2}],
        False: [{"jobs_running": [], "num_jobs_running": 0}, {"role": "finetune"},
                {"jobs_running": [other], "num_jobs_running": 1}],
    }  # fmt: skip
    for may, workers in told.items():
        assert visit.open().evaluate(MAY_COMPUTE, workers) == [may] * len(workers)
