"""What a client promises, kept by all four: real and fake, awaited and not."""

import os
import signal
import threading
import time

import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CPU_QUEUE, GPU_QUEUE
from kronos_client.contract.schemas import example
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.kinds import JobState
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import KINDS, RESULT, ClientBench, client_bench
from tests.waiting import WAIT_S, await_true

CANDLES = candles(seed=1, bars=60).as_dict()


def later(act, *arguments) -> threading.Timer:
    timer = threading.Timer(0.1, act, arguments)
    timer.start()
    return timer


def code_of(call, *arguments, **options) -> str:
    with pytest.raises(JobError) as ended:
        call(*arguments, **options)
    return ended.value.code


def test_a_job_is_waited_for_until_it_is_done(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5, job_id="a")
    assert (handle.id, handle.queue, handle.state().name) == ("a", CPU_QUEUE, "PENDING")
    assert handle.peek() is None
    later(bench.finish, "a").join()
    assert handle.wait(WAIT_S) == handle.peek() == RESULT
    assert handle.state() == JobState("SUCCESS")
    assert bench.client.forecast_handle("a").wait(WAIT_S) == RESULT


def test_who_waits_is_woken_and_need_not_look(bench: ClientBench, monkeypatch):
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 1000.0)
    handle = bench.client.submit(CANDLES, pred_len=5)
    timer = later(bench.finish, handle.id)
    assert handle.wait(1000) == RESULT
    timer.join()


def test_a_failure_is_raised_as_it_was_stored(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5)
    error = JobError(ErrorCode.DEADLINE, "too late", "deadline_s", {"waited_s": 3})
    bench.fail(handle.id, error)
    for look in (lambda: handle.wait(WAIT_S), handle.peek):
        with pytest.raises(JobError) as ended:
            look()
        assert ended.value.args == error.args


def test_a_waiting_job_misses_its_deadline_without_any_worker(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5, deadline_s=0.2)
    with pytest.raises(JobError) as ended:
        handle.wait(WAIT_S)
    assert (ended.value.code, ended.value.field) == (ErrorCode.DEADLINE, "deadline_s")
    bench.finish(handle.id)  # a worker's outcome comes too late
    assert code_of(handle.peek) == ErrorCode.DEADLINE


def test_the_first_outcome_stands(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5)
    bench.finish(handle.id)
    bench.fail(handle.id, JobError(ErrorCode.DEADLINE, "too late"))
    assert handle.wait(WAIT_S) == RESULT


def test_what_takes_too_long_goes_on(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5)
    assert code_of(handle.wait, 0.01) == ErrorCode.TIMEOUT
    bench.finish(handle.id)
    assert handle.wait(WAIT_S) == RESULT


def test_a_forecast_that_takes_too_long_is_cancelled(bench: ClientBench):
    assert (
        code_of(bench.client.forecast, CANDLES, pred_len=5, timeout_s=0.01, job_id="a") == ErrorCode.TIMEOUT
    )
    assert code_of(bench.client.forecast_handle("a").wait, 5) == ErrorCode.CANCELLED


def test_a_forecast_that_could_not_be_cancelled_in_time_says_so(bench: ClientBench, monkeypatch):
    def unreachable(*_: object) -> None:
        raise JobError(ErrorCode.BROKER_UNREACHABLE, "Redis does not answer")

    with monkeypatch.context() as patched:
        for kind in Dispatcher.__subclasses__():
            patched.setattr(kind, "_cancel", unreachable)
        with pytest.raises(JobError) as ended:
            bench.client.forecast(CANDLES, pred_len=5, timeout_s=0.01, job_id="a")
        (outcome,) = bench.client.forecast_many([("b", CANDLES)], pred_len=5, timeout_s=0.01)
    for error in (ended.value, outcome.error):
        assert error.code == ErrorCode.TIMEOUT
        assert error.message.startswith("no result within 0.01 s; the job may go on, since it could not be")
    assert ended.value.details["job_id"] == "a"
    bench.client.forecast_handle("a").cancel()
    assert code_of(bench.client.forecast_handle("a").wait, 5) == ErrorCode.CANCELLED


@pytest.mark.parametrize("kind", ["real", "awaited real"])
def test_redis_going_away_does_not_hide_that_the_time_is_over(kind, settings):
    with (
        LocalRedis() as server,
        client_bench(kind, settings.with_redis_url(server.url), None) as bench,
        pytest.raises(JobError) as ended,
    ):
        bench.client.forecast(CANDLES, pred_len=5, timeout_s=0.5, on_progress=lambda state: server.stop())
    assert ended.value.code == ErrorCode.TIMEOUT
    assert "could not be cancelled (BROKER_UNREACHABLE)" in ended.value.message


def interrupt_once(is_time) -> threading.Thread:
    def interrupt() -> None:
        await_true(is_time)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_an_interrupt_cancels_the_job_of_a_forecast(bench: ClientBench):
    is_awaited = threading.Event()
    thread = interrupt_once(is_awaited.is_set)
    with pytest.raises(KeyboardInterrupt):
        bench.client.forecast(CANDLES, pred_len=5, job_id="a", on_progress=lambda state: is_awaited.set())
    thread.join()
    assert code_of(bench.client.forecast_handle("a").wait, 5) == ErrorCode.CANCELLED


@pytest.mark.parametrize(
    ("method", "job_id", "is_left"),
    [("forecast", None, False), ("forecast", "a", False), ("submit", None, False), ("submit", "a", True)],
)
def test_an_interrupt_amid_sending_leaves_no_job_whose_id_nobody_has(
    bench: ClientBench, monkeypatch, method, job_id, is_left
):
    sent: list[str] = []

    def interrupted(enqueue):
        def enqueue_slowly(dispatcher, jobs):
            errors = enqueue(dispatcher, jobs)
            sent.extend(job.id for job, _ in jobs)
            thread.join()  # the signal is sent
            time.sleep(0.1)
            return errors

        return enqueue_slowly

    for kind in Dispatcher.__subclasses__():
        monkeypatch.setattr(kind, "enqueue", interrupted(kind.enqueue))
    thread = interrupt_once(lambda: sent)
    with pytest.raises(KeyboardInterrupt):
        getattr(bench.client, method)(CANDLES, pred_len=5, job_id=job_id)
    thread.join()
    handle = bench.client.forecast_handle(sent[0])
    if is_left:
        assert code_of(handle.wait, 0.2) == ErrorCode.TIMEOUT
    else:
        assert code_of(handle.wait, WAIT_S) == ErrorCode.CANCELLED


def test_progress_is_told(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5)
    seen = []

    def follow(state: JobState) -> None:
        seen.append(state)
        if state.name == "PENDING":
            bench.set_progress(handle.id, 2, 5)
        elif state.name == "PROGRESS":
            bench.finish(handle.id)

    assert handle.wait(WAIT_S, on_progress=follow) == RESULT
    assert seen[0].name == "PENDING"
    assert seen[1:] == [JobState("PROGRESS", 2, 5), JobState("SUCCESS")]
    assert [state.has_ended for state in seen] == [False, False, True]
    handle, seen[:] = bench.client.submit(CANDLES, pred_len=5), ()
    for state in handle.progress():
        follow(state)
    assert seen[0].name == "PENDING"
    assert seen[1:] == [JobState("PROGRESS", 2, 5), JobState("SUCCESS")]


def test_a_result_whose_state_was_given_is_not_read_again(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5)
    bench.finish(handle.id)
    assert handle.wait(WAIT_S, on_progress=lambda state: bench.lose(), forget=True) == RESULT


def test_nothing_is_known_of_a_job_that_nobody_submitted(bench: ClientBench):
    handle = bench.client.forecast_handle("nobody's")
    assert {code_of(handle.wait, 5), code_of(handle.peek), code_of(handle.check)} == {ErrorCode.LOST}


@pytest.mark.parametrize("job_id", ["", "\ud800", "x" * 201])
def test_what_cannot_be_an_id_is_no_jobs(bench: ClientBench, job_id):
    handle = bench.client.forecast_handle(job_id)
    assert {code_of(handle.wait, 5), code_of(handle.peek)} == {ErrorCode.LOST}
    assert code_of(bench.client.submit, CANDLES, pred_len=5, job_id=job_id) == ErrorCode.BAD_VALUE


def test_cancelling_an_unknown_id_leaves_nothing_for_a_later_job_of_that_id(bench: ClientBench):
    for job_id in ("a", "b\n"):
        assert code_of(bench.client.forecast_handle(job_id).cancel) == ErrorCode.LOST
    handle = bench.client.submit(CANDLES, pred_len=5, job_id="a")
    assert bench.waiting() == ["a"]
    bench.finish("a")
    handle.cancel()  # a job that has ended stays as it is
    assert handle.wait(WAIT_S) == RESULT


def test_who_waits_for_a_job_that_is_lost_meanwhile_is_told(bench: ClientBench, monkeypatch):
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 0.05)
    handle = bench.client.submit(CANDLES, pred_len=5)
    timer = later(bench.lose)
    assert code_of(handle.wait, 1000) == ErrorCode.LOST
    timer.join()


def test_a_job_whose_message_is_lost_may_be_submitted_again(bench: ClientBench, monkeypatch):
    monkeypatch.setattr("kronos_client.core.result_store.SEEN_FOR_S", 0.05)
    monkeypatch.setattr("kronos_client.core.result_events.LOOK_INTERVAL_S", 0.05)
    handle = bench.client.submit(CANDLES, pred_len=5, job_id="a")
    timer = later(bench.lose_message, "a")
    with pytest.raises(JobError, match="safe to submit again") as lost:
        handle.wait(WAIT_S)
    timer.join()
    assert (lost.value.code, lost.value.details) == (ErrorCode.LOST, {"job_id": "a"})
    again = bench.client.submit(CANDLES, pred_len=5, job_id="a")
    later(bench.finish, "a").join()
    assert again.wait(WAIT_S) == RESULT


def test_a_result_is_forgotten_and_the_job_stays_done(bench: ClientBench):
    handle = bench.client.submit(CANDLES, pred_len=5, job_id="a")
    assert not handle.forget()
    bench.finish("a")
    assert handle.wait(WAIT_S, forget=True) == RESULT
    assert code_of(handle.wait, 5) == ErrorCode.RESULT_EXPIRED
    assert code_of(bench.client.submit(CANDLES, pred_len=5, job_id="a").wait, 5) == ErrorCode.RESULT_EXPIRED


def test_the_same_job_may_be_submitted_again_and_no_other_under_its_id(bench: ClientBench):
    bench.client.submit(CANDLES, pred_len=5, job_id="a")
    assert code_of(bench.client.submit, CANDLES, pred_len=6, job_id="a") == ErrorCode.ID_CONFLICT
    bench.finish("a")
    assert bench.client.submit(CANDLES, pred_len=5, job_id="a").wait(WAIT_S) == RESULT


def test_ids_are_made_where_none_is_given(bench: ClientBench):
    ids = {bench.client.submit(CANDLES, pred_len=5).id for _ in range(3)}
    assert len(ids) == 3
    assert code_of(bench.client.submit, CANDLES, pred_len=5, job_id="") == ErrorCode.BAD_VALUE


def test_jobs_go_where_the_workers_are(bench: ClientBench):
    options = {"pred_len": 5, "device": "cuda", "allow_fallback": False}
    assert code_of(bench.client.submit, CANDLES, **options) == ErrorCode.NO_GPU_WORKER
    assert bench.client.submit(CANDLES, pred_len=5, device="cuda").queue == CPU_QUEUE
    bench.start_gpu_worker()
    assert "gpu" in {worker.queue for worker in bench.client.workers()}


def test_a_gpu_worker_is_sent_to(bench: ClientBench):
    bench.start_gpu_worker()
    assert bench.client.submit(CANDLES, pred_len=5).queue == GPU_QUEUE


@pytest.mark.parametrize(
    ("changes", "options", "code", "field"),
    [
        ({"close": [float("nan")] * 60}, {"pred_len": 5}, ErrorCode.NOT_FINITE, "series.0.close"),
        ({}, {}, ErrorCode.MISSING_FIELD, "pred_len"),
        ({}, {"pred_len": 5, "device": "tpu"}, ErrorCode.INVALID_DEVICE, "device"),
        ({}, {"pred_len": 5, "sample_count": 257}, ErrorCode.LIMIT_EXCEEDED, "sampling.sample_count"),
    ],
)
def test_what_a_worker_would_refuse_is_refused(bench: ClientBench, changes, options, code, field):
    with pytest.raises(JobError) as refused:
        bench.client.submit({**CANDLES, **changes}, **options)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert bench.waiting() == []


def test_a_misspelt_option_is_a_type_error(bench: ClientBench):
    with pytest.raises(TypeError, match="predlen"):
        bench.client.submit(CANDLES, predlen=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("method", "options", "code"),
    [
        ("forecast", {"timeout_s": "5"}, ErrorCode.BAD_TYPE),
        ("forecast", {"timeout_s": float("nan")}, ErrorCode.BAD_VALUE),
        ("forecast", {"timeout_s": True}, ErrorCode.BAD_TYPE),
        ("forecast", {"on_progress": "print"}, ErrorCode.BAD_TYPE),
        ("forecast", {"forget": "no"}, ErrorCode.BAD_TYPE),
        ("submit", {"retry_for_s": "5"}, ErrorCode.BAD_TYPE),
        ("submit", {"retry_for_s": None}, ErrorCode.BAD_TYPE),
        ("submit", {"retry_for_s": float("nan")}, ErrorCode.BAD_VALUE),
        ("submit_job", {"retry_for_s": "5"}, ErrorCode.BAD_TYPE),
        ("forecast_many", {"timeout_s": "5"}, ErrorCode.BAD_TYPE),
        ("forecast_many", {"retry_for_s": float("nan")}, ErrorCode.BAD_VALUE),
        ("forecast_many", {"max_in_flight": 2.5}, ErrorCode.BAD_VALUE),
        ("forecast_many", {"max_in_flight": "2"}, ErrorCode.BAD_TYPE),
        ("wait", {"timeout_s": "5"}, ErrorCode.BAD_TYPE),
        ("wait", {"on_progress": 5}, ErrorCode.BAD_TYPE),
    ],
)
def test_an_option_of_waiting_that_cannot_be_used_is_refused_before_anything_is_sent(
    bench: ClientBench, method, options, code
):
    given = {"submit_job": [example("forecast-job")], "forecast_many": [[CANDLES]], "wait": []}
    needed = {} if method in ("submit_job", "wait") else {"pred_len": 5}
    call = getattr(bench.client, method, None) or bench.client.forecast_handle("a").wait
    with pytest.raises(JobError) as refused:
        call(*given.get(method, [CANDLES]), **needed, **options)
    (name,) = options
    assert (refused.value.code, refused.value.field) == (code, name)
    assert refused.value.message.startswith(f"{name} must be ")
    assert bench.waiting() == []


def test_a_closed_client_sends_and_reads_nothing(bench: ClientBench):
    bench.client.submit(CANDLES, pred_len=5, job_id="a")
    for _ in range(2):
        (bench.client.close if hasattr(bench.client, "close") else bench.client.aclose)()
    for call in (bench.client.workers, lambda: bench.client.forecast_handle("a").peek()):
        with pytest.raises(RuntimeError):
            call()
    for job_id in ("a", "b"):
        with pytest.raises(RuntimeError, match="the client was closed: make a new one"):
            bench.client.submit(CANDLES, pred_len=5, job_id=job_id)
    with pytest.raises(RuntimeError, match="the client was closed: make a new one"):
        list(bench.client.forecast_many([CANDLES], pred_len=5))


def test_refusals_are_in_the_words_of_json(bench: ClientBench):
    for options, text in (
        ({"seed": "5"}, "must be an integer, not '5'"),
        ({"deadline_s": "5"}, "must be a number, not '5'"),
        ({"calendar": 5}, "must be a string, not 5"),
        ({"top_p": 2}, "must be at most 1, not 2"),
    ):
        with pytest.raises(JobError, match=text):
            bench.client.submit(CANDLES, pred_len=5, **options)


def test_jobs_in_the_contracts_own_form(bench: ClientBench):
    handle = bench.client.submit_job(example("forecast-job"), job_id="a")
    bench.finish("a")
    assert handle.wait(WAIT_S) == RESULT
    bench.client.submit_finetune_job(example("finetune-job"), job_id="b").cancel()
    bench.client.submit_backtest_job(example("backtest-job"), job_id="c").cancel()
    for ended in (bench.client.finetune_handle("b"), bench.client.backtest_handle("c")):
        assert code_of(ended.peek) == ErrorCode.CANCELLED


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_refuses_and_says_when_to_come_back(kind, settings, redis):
    with client_bench(kind, settings.model_copy(update={"max_queue_jobs": 2}), redis) as bench:
        bench.client.submit(CANDLES, pred_len=5, job_id="a")
        bench.client.submit(CANDLES, pred_len=5, job_id="b")
        with pytest.raises(JobError) as refused:
            bench.client.submit(CANDLES, pred_len=5, job_id="c")
        assert refused.value.code == ErrorCode.QUEUE_FULL
        assert refused.value.details.keys() == {"queue", "length", "limit", "retry_after_s"}


def test_a_finetuning_job_is_submitted_and_cancelled(bench: ClientBench):
    config = {"data": {"lookback": 30, "pred_len": 5}, "predictor": {"epochs": 2}}
    handle = bench.client.finetune(config, name="mine", data=CANDLES)
    assert handle.queue == "cpu.finetune"
    handle.cancel()
    assert code_of(handle.wait, 5) == ErrorCode.CANCELLED
    with pytest.raises(JobError) as refused:
        bench.client.finetune({**config, "predictor": {"epochs": 0}}, name="mine", data=CANDLES)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_CONFIG, "config.predictor.epochs")
