"""What ``ForecastClient``, ``AsyncForecastClient``, their fakes and the HTTP API share: one core on asyncio.

core.py             sends jobs on threads, and waits for them on one event loop
dispatcher.py       what is asked of Redis on threads: send, cancel, list workers
result_store.py     what is stored of jobs, and what is published; stored.py: its format
result_events.py    the states of jobs as they come: the one way to wait
async_handle.py     an enqueued job in an event loop; handle.py: the same without one, over loop_thread.py
many.py             forecasts of any number of items, bounded at a time
job.py              a job that was checked; kinds.py: forecasts and finetuning
forecast_request.py from what apps hold to a job; finetune_request.py; series.py: one series
reading.py          objects of an app's that raise as they are read
retrying.py         when a submission is tried again; reachable.py: a Redis that does not answer
stand_in.py         results that no model computed, for apps' tests
"""
