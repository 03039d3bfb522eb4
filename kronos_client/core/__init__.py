"""The asyncio core that ``ForecastClient``, ``AsyncForecastClient``, their fakes and the HTTP API share.

core.py             sends jobs on threads, and waits for them on one event loop
dispatcher.py       blocking calls to Redis: send, cancel, list workers
result_store.py     reads and receives jobs' states; stored.py: their format
result_events.py    waits for jobs' states; nothing else waits
async_handle.py     an enqueued job in an event loop; handle.py: the same without one, over loop_thread.py
many.py             forecasts of any number of items, a bounded number at a time
job.py              a checked job; kinds.py: forecasts and finetuning
forecast_request.py from an app's data to a job; finetune_request.py; series.py: one series
reading.py          coded errors for an app's objects that raise when they are read
retrying.py         when to submit again; reachable.py: a Redis that does not answer
stand_in.py         results that no model computed, for apps' tests
"""
