"""The commands, each with a line of help, for the launcher, ``--help`` and shells. Standard library only."""

from typing import Final

COMMANDS: Final = {
    "demo": "Make one forecast, from an empty machine to a chart: Redis, worker, job, result.",
    "up": "Run Redis, workers, the API with its page, and Flower on this machine.",
    "forecast": "Forecast candle files: CSV or Parquet, folders of them, or patterns.",
    "finetune": "Train a model on your own candles: here, or as a job.",
    "worker": "Run a worker: load the model once, take jobs from the queue of its device.",
    "api": "Serve the HTTP API and its web page.",
    "flower": "Run Flower, the web page on queues and jobs.",
    "status": "Show the workers that are alive, busy and loading ones included.",
    "queues": "Show how many jobs wait, how fast they are taken, and dead messages.",
    "models": "Show the registered models, which forecast jobs may name.",
    "devices": "Show what each device would resolve to on this machine.",
    "check": "Look for what is wrong with this installation, and say what to do about it.",
    "healthcheck": "Exit with 0 when a worker on this host is ready.",
    "completion": "Print the script by which a shell completes commands and options.",
}
