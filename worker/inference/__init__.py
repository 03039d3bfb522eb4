"""Forecast jobs inside a worker: models, engines and their thread.

forecast_process.py  the process of a forecasting worker: its device, state and status
model_server.py      the models of a process and the thread that runs their engines
model_loader.py      loads a model onto its device, within its share of the memory
model_cache.py       the models that a worker holds, and which one is dropped to make room
capacity.py          which further jobs a worker takes
executor.py          computes one job; engine_thread.py: the only thread that uses engines
isolation.py         computes suspects in a child process, isolation_child.py
watchdog.py          detects a step that hangs; forced_shutdown.py: ends the worker
pools.py             Celery's pool of threads; gpu_failover.py: CPU workers stand in for GPU workers
probe.py             tests devices in a child process, probe_child.py
"""
