"""The asyncio core that ``ForecastClient``, ``AsyncForecastClient``, their fakes and the HTTP API share.

A job goes through these modules in turn:

series.py            an app's candles to series of the wire
options.py           the options of the clients' methods, and what ``help`` shows of them
forecast_request.py  candles and options to a forecast; long_request.py: to a finetuning job or a backtest
job.py               a checked job with its id; equal_jobs.py: one id for equal ones
dispatcher.py        sends and cancels jobs, blocking; repeats what was refused for now
core.py              sends jobs in an event loop, and waits for their states
result_store.py      reads stored states, and receives published ones
stored.py            a stored state; kinds.py: what it means for each kind of job
result_events.py     waits for the states of any number of jobs, and says why no worker takes one
handle.py            an enqueued job, for its submitter; a thread with a loop for callers that have none
many.py              ``forecast_many``; predict_df.py: ``predict_df``
job_facts.py         what Redis says about one job, and the newest jobs, for operators
"""
