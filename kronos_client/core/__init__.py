"""What ``ForecastClient``, ``AsyncForecastClient`` and their fakes in ``kronos_client.testing`` share.

base.py                 what every client offers
many.py                 any number of forecasts, bounded at a time; async_many.py: the same in an event loop
forecast_request.py     from what apps hold to a job; finetune_request.py; series.py: one series
job_ids.py              the id of a job; reading.py: objects of an app's that raise as they are read
retrying.py             when a submission is tried again
handle.py               an enqueued job; async_handle.py: the same in an event loop
outcome.py              what is stored of it; endings.py, async_endings.py: hearing of its end
async_channel.py        the connection by which the latter do
forgetting.py           giving up a result that was read
stand_in.py             results that no model computed, for apps' tests
"""
