"""What the fake client adds for apps' tests: made-up results, and the means to steer it."""

from functools import partial

import numpy as np
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import GPU_QUEUE
from kronos_client.contract.results import ForecastResult, SeriesForecast
from kronos_client.contract.schemas import example
from kronos_client.core.kinds import JobState
from kronos_client.settings import ClientSettings
from kronos_client.testing import STAND_IN, FakeForecastClient, fake_worker
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles

CANDLES = candles(seed=1, bars=60).as_dict()


@pytest.fixture
def fake():
    with FakeForecastClient() as fake:
        yield fake


def forecast(fake: FakeForecastClient, **options) -> ForecastResult:
    return fake.forecast(CANDLES, **{"pred_len": 5, **options})


def test_the_queues_have_the_prefix_of_the_settings():
    with FakeForecastClient(settings=ClientSettings.model_construct(queue_prefix="app.")) as fake:
        assert [worker.queue for worker in fake.live_workers] == ["app.cpu", "app.cpu.finetune"]
        assert (forecast(fake).queue, forecast(fake).device) == ("app.cpu", "cpu")
        fake.live_workers = [fake_worker("app.gpu")]
        assert (forecast(fake).queue, forecast(fake).device) == ("app.gpu", "cuda:0")


def test_a_result_has_the_form_that_was_asked_for(fake):
    result = fake.forecast(
        [CANDLES, CANDLES],
        pred_len=7,
        sample_count=3,
        paths=True,
        quantiles=[0.25, 0.75],
        series_ids=["a", "b"],
        events=("close>last at end",),
        statistics=True,
        calibrated=True,
    )
    assert (result.calibration.method, result.calibration.horizon) == ("stand-in", 7)
    assert [one.id for one in result.series] == ["a", "b"]
    for one in result.series:
        assert len(one.timestamps) == 7
        assert one.mean.keys() == one.paths.keys() == set(COLUMNS)
        assert {len(values) for values in one.mean.values()} == {7}
        assert one.quantiles.keys() == {"0.25", "0.75"}
        assert np.shape(one.paths["close"]) == (3, 7)
        higher = np.array(one.paths["close"])[:, -1] > CANDLES["close"][-1]
        assert [chance.num_hits for chance in one.events] == [higher.sum()]
        assert one.statistics.total_return.quantiles.keys() == {"0.25", "0.75"}
    assert ForecastResult.model_validate(result.model_dump(mode="json")) == result
    assert (result.device, result.queue, result.worker) == ("cpu", "cpu", STAND_IN)


def test_made_up_bars_are_such_as_a_market_could_print(fake):
    (one,) = forecast(fake, sample_count=20, pred_len=20, paths=True).series
    paths = {name: np.asarray(values) for name, values in one.paths.items()}
    assert (paths["high"] >= np.maximum(paths["open"], paths["close"])).all()
    assert (paths["low"] <= np.minimum(paths["open"], paths["close"])).all()
    assert (paths["low"] > 0).all()
    assert (paths["volume"] >= 0).all()


def test_the_same_job_and_seed_give_the_same_numbers(fake):
    first, second, other = (forecast(fake, seed=seed).series[0] for seed in (7, 7, 8))
    assert first == second
    assert first.mean["close"] != other.mean["close"]
    assert (first.seed, other.seed) == (7, 8)
    by_id = [forecast(FakeForecastClient(), job_id="a").series[0].seed for _ in range(2)]
    assert by_id[0] == by_id[1]


def test_what_only_the_worker_knows_ends_the_job(fake):
    handle = fake.submit(CANDLES, pred_len=513)
    with pytest.raises(JobError) as ended:
        handle.wait(1)
    assert ended.value.code == ErrorCode.PRED_LEN_TOO_LONG


def test_another_device_than_was_asked_for_is_told(fake):
    result = forecast(fake, device="cuda")
    assert (result.device, result.queue) == ("cpu", "cpu")
    assert result.device_warning in result.warnings
    fake.live_workers.append(fake_worker(GPU_QUEUE))
    result = forecast(fake, device="cuda")
    assert (result.device, result.queue, result.device_warning) == ("cuda:0", "gpu", None)


def test_what_was_accepted_is_there_to_be_looked_at(fake):
    fake.submit(CANDLES, pred_len=5, job_id="a", seed=7)
    fake.submit_job(example("forecast-job"), job_id="b")
    assert list(fake.jobs) == ["a", "b"]
    assert fake.jobs["a"]["sampling"]["seed"] == 7
    assert fake.jobs["b"]["series"][0]["id"] == "AAPL"


def test_jobs_are_held_until_they_are_ended():
    fake = FakeForecastClient(hold=True)
    handle = fake.submit(CANDLES, pred_len=5)
    fake.set_progress(handle.id, 2, 5)
    assert handle.state() == JobState("PROGRESS", 2, 5)
    early = SeriesForecast(id="0", timestamps=("2024-06-18",), mean={"close": (1.0,)}, quantiles={}, seed=1)
    fake.set_progress(handle.id, 3, 5, [early])
    assert handle.state() == JobState("PROGRESS", 3, 5, (early,))
    fake.finish(handle.id)
    assert handle.wait(1).series[0].timestamps


def test_an_id_that_was_not_accepted_has_nothing_to_end(fake):
    error = JobError(ErrorCode.INTERNAL, "failed")
    for call in (fake.finish, fake.lose, lambda job_id: fake.fail(job_id, error)):
        with pytest.raises(JobError, match="LOST: Redis holds nothing about this job"):
            call("zzz")


def test_a_finetuned_model_has_a_version_each_time(fake):
    results = [fake.submit_finetune_job(example("finetune-job")).wait(1) for _ in range(2)]
    assert [result.model.id for result in results] == ["crypto-hourly@1", "crypto-hourly@2"]


def test_a_model_that_workers_announce_without_a_calibration_is_refused_before_it_waits(fake):
    counts = {"revision": None, "state": "ready", "jobs": 0, "slots": 1, "running": 0, "waiting": 0}
    held = [{"id": name, **counts} for name in ("own", "mine@2", "kronos-tiny")]
    fake.live_workers = [fake_worker(models=held)]
    for model in (None, "mine@2"):
        with pytest.raises(JobError, match=r"NOT_CALIBRATED: the model .* has no calibration"):
            forecast(fake, model=model, calibrated=True)
    assert not fake.jobs
    for model in ("mine", "tiny"):
        assert forecast(fake, model=model, calibrated=True).calibration, "its worker knows which one it is"


def test_future_times_follow_the_calendar_and_say_so(fake):
    days = {
        **CANDLES,
        "timestamps": [f"2024-{month:02}-{day:02}" for month in (1, 2, 3) for day in range(1, 21)],
    }
    assert forecast(fake).series[0].timestamps_from.startswith("the lookback's times of day and weekdays")
    named = fake.forecast(days, pred_len=2, calendar="24/7").series[0]
    assert (named.timestamps, named.timestamps_from) == (("2024-03-21", "2024-03-22"), "the calendar 24/7")
    with pytest.raises(JobError) as refused:
        fake.forecast(days, pred_len=2, calendar="MARS")
    assert (refused.value.code, refused.value.field) == (ErrorCode.CALENDAR_UNKNOWN, "series.0.calendar")


def test_the_next_submissions_are_refused_as_told(fake):
    fake.refuse_next(JobError(ErrorCode.QUEUE_FULL, "full", None, {"retry_after_s": 3}), times=2)
    for _ in range(2):
        with pytest.raises(JobError, match="QUEUE_FULL"):
            forecast(fake)
    with pytest.raises(JobError, match="MISSING_FIELD"):
        fake.submit(CANDLES)
    assert forecast(fake).series


UNSERVED = "No worker serves the queue cpu. Jobs wait until one does; start one with: kronos worker"


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], UNSERVED),
        ([fake_worker(GPU_QUEUE), fake_worker(state="draining")], UNSERVED),
        (
            [fake_worker(state="loading")],
            "Every worker of the queue cpu is still loading its model. Jobs wait until one is ready; "
            "start another one with: kronos worker",
        ),
        ([fake_worker(), fake_worker(state="loading")], None),
    ],
    ids=["none", "others", "loading", "ready"],
)
def test_a_job_that_no_worker_can_take_says_so_and_waits_on(caplog, workers, reason):
    fake = FakeForecastClient(hold=True)
    fake.live_workers = workers

    def end(state: JobState) -> None:
        states.append(state)
        if not state.has_ended:
            fake.finish(list(fake.jobs)[-1])

    for _ in range(2):
        states: list[JobState] = []
        assert fake.forecast(CANDLES, pred_len=5, device="cpu", on_progress=end).series
        assert [(state.name, state.waiting) for state in states] == [("PENDING", reason), ("SUCCESS", None)]
    many = fake.forecast_many([CANDLES], pred_len=5, device="cpu", timeout_s=0)
    assert [outcome.error.code for outcome in many] == [ErrorCode.TIMEOUT]
    for late in (
        partial(fake.forecast, CANDLES, pred_len=5, device="cpu"),
        fake.submit(CANDLES, pred_len=5, device="cpu").wait,
    ):
        with pytest.raises(JobError) as ended:
            late(timeout_s=0)
        assert ended.value.details.get("waiting") == reason
        assert reason is None or ended.value.message.endswith(f". {reason}")
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ([] if reason is None else [reason]), "once, until a worker is ready"


def test_each_role_has_its_own_command(caplog):
    fake = FakeForecastClient(hold=True)
    fake.live_workers = []
    assert fake.submit_finetune_job(example("finetune-job")).state().waiting.endswith(" --role finetune")
    fake.live_workers = [fake_worker("gpu")]
    on_gpu = fake.submit(CANDLES, pred_len=5, device="cuda")
    fake.live_workers = [fake_worker()]
    assert on_gpu.state().waiting.endswith("start one with: kronos worker --device cuda")
    assert not fake.submit(CANDLES, pred_len=5).state().waiting
