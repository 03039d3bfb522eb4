"""The HTTP API: forecasts, finetuning and operation. It only enqueues jobs and reads their results.

A request passes these files in order:

- ``main`` builds the app; ``__main__`` serves it. ``settings`` has what it reads of the environment.
- ``keys`` reads the accepted keys and what each allows; ``middleware`` has authentication, limits,
  encodings and the log.
- ``routes`` answer it. ``uploads`` read files of candles, ``webhooks`` call back when a job ends.
- ``agents`` serves tools for agents, if the setting says so.
- ``backend`` sends jobs to Redis and waits for them; ``job_state`` names their states.
- ``problems`` turns errors into answers.

``addresses``, ``description`` (OpenAPI) and ``page_files`` (the web page) serve all of them.
"""
