"""Which jobs get one id, and are computed once."""

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import is_shared
from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.equal_jobs import shared
from kronos_client.core.job import finetune_job, forecast_job
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeForecastClient, fake_worker
from tests.kronos_client.contract.contract_jobs import job, series

SETTINGS = ClientSettings.model_construct(share_equal_jobs=True)
HUB = {"id": "a/b", "revision": "1", "tokenizer_id": "a/t", "tokenizer_revision": "2"}
WORKERS = [fake_worker(model=HUB)]
SEEDED = {"sampling": {"seed": 7}}


def id_of(content, scope: str = "", workers=WORKERS) -> str:
    return shared(forecast_job(content, "own", SETTINGS), scope, workers).id


def test_equal_jobs_have_one_id_and_others_another():
    first = id_of(job(**SEEDED))
    assert is_shared(first)
    both = [*WORKERS, fake_worker("gpu", model=HUB)]
    assert id_of(job(**SEEDED) | {"submitted_at": 5.0}, workers=both) == first
    others = [
        id_of(job(sampling={"seed": 8})),
        id_of(job(series(num_bars=29), **SEEDED)),
        id_of(job(**SEEDED), "a key"),
        *(id_of(job(**SEEDED), workers=[fake_worker(model=HUB | {name: "3"})]) for name in HUB),
    ]
    assert len({first, *others}) == 1 + len(others)
    assert all(map(is_shared, others))


@pytest.mark.parametrize(
    ("content", "is_equal"),
    [
        (job(), False),
        (job(series("a", seed=1), series("b")), False),
        (job(series("a", seed=1), series("b", seed=2)), True),
        (job(**SEEDED, model="a/b"), True),
        (job(**SEEDED, model="mine"), False),
    ],
)
def test_a_job_without_all_seeds_or_with_an_unknown_model_is_not_equal_to_another(content, is_equal):
    assert is_shared(id_of(content)) == is_equal


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [fake_worker(model=HUB, state="draining")],
        [*WORKERS, fake_worker(model=HUB | {"revision": "2"})],
        [fake_worker(model=HUB | {"id": "/models/mine", "revision": None})],
        [fake_worker(model=HUB | {"tokenizer_revision": None})],
        [*WORKERS, fake_worker("gpu", model=HUB | {"id": "c/d"})],
    ],
)
def test_no_job_is_shared_unless_workers_announce_one_revision_of_its_model(workers):
    assert id_of(job(**SEEDED), workers=workers) == "own"


def announced(engine: str | None, queue: str = "cpu") -> AnyWorkerStatus:
    held = {"id": "a/b", "revision": "1", "state": "ready", "jobs": 0, "slots": 8, "running": 0, "waiting": 0}
    return fake_worker(queue, model=HUB, models=[held | {"engine": engine}], node=f"{queue}-{engine}")


def test_the_engine_is_part_of_a_shared_job():
    ids = [id_of(job(**SEEDED), workers=[announced(engine)]) for engine in ("native", "torch", None)]
    assert len(set(ids)) == 3
    assert all(map(is_shared, ids))
    assert id_of(job(**SEEDED), workers=[announced("native"), announced("torch")]) == "own"
    assert id_of(job(**SEEDED), workers=[announced(None), announced("torch")]) == "own"


def test_only_the_engines_of_the_pool_that_takes_the_job_count():
    pools = [announced("native"), announced("torch", "gpu")]
    anywhere, on_cpu = job(**SEEDED), job(**SEEDED, device="cpu")
    first = id_of(anywhere, workers=pools)
    assert first == id_of(anywhere, workers=[announced("torch")])
    assert id_of(on_cpu, workers=pools) == id_of(on_cpu, workers=[announced("native")])
    mixed = [*pools, announced("torch")]
    assert (id_of(anywhere, workers=mixed), id_of(on_cpu, workers=mixed)) == (first, "own")


def test_a_registered_model_is_shared_by_its_version_as_its_name_may_soon_mean_another():
    model = {"id": "mine", "revision": "3", "tokenizer_id": "mine", "tokenizer_revision": "3"}
    held = {"id": "mine@3", "revision": "3", "state": "ready"}
    counts = {"jobs": 0, "slots": 8, "running": 0, "waiting": 0}
    workers = [fake_worker(model=model, models=[held | counts])]
    assert is_shared(id_of(job(**SEEDED, model="mine@3"), workers=workers))
    assert not is_shared(id_of(job(**SEEDED, model="mine"), workers=workers))


def test_forecasts_whose_results_are_to_be_deleted_are_not_shared():
    with FakeForecastClient(settings=SETTINGS) as fake:
        fake.live_workers = WORKERS
        for forget in (False, True):
            (one,) = fake.forecast_many([series()], sample_count=2, seed=7, pred_len=5, forget=forget)
            assert is_shared(one.job_id) != forget


def test_finetuning_jobs_are_not_shared():
    assert shared(finetune_job(example("finetune-job"), "own", SETTINGS), "", WORKERS).id == "own"


@pytest.fixture
def fake():
    with FakeForecastClient(settings=SETTINGS, hold=True) as fake:
        fake.live_workers = WORKERS
        yield fake


def test_no_sender_can_cancel_or_delete_a_shared_job(fake):
    first, second = (fake.submit_job(job(**SEEDED)) for _ in range(2))
    assert first.id == second.id
    assert list(fake.jobs) == [first.id]
    first.cancel()
    given = {"sample_count": 2, "seed": 7, "pred_len": 5, "timeout_s": 0.01}
    with pytest.raises(JobError, match="others may share it"):
        fake.forecast(series(), **given)
    assert len(fake.jobs) == 2
    assert not first.state().has_ended
    fake.finish(first.id)
    result = first.wait(1, forget=True)
    assert not first.forget()
    assert second.wait(1) == result


def test_a_shared_job_that_failed_is_computed_again(fake):
    first = fake.submit_job(job(**SEEDED))
    fake.fail(first.id, JobError(ErrorCode.INTERNAL, "failed"))
    again = fake.submit_job(job(**SEEDED))
    assert (again.id, again.state().name) == (first.id, "PENDING")


def test_a_chosen_id_stays(fake):
    assert fake.submit_job(job(**SEEDED), job_id="mine").id == "mine"
    assert list(fake.jobs) == ["mine"]
