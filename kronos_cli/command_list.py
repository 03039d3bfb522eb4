"""The commands with one line of help each. The launcher reads this too: standard library only."""

from typing import Final

COMMANDS: Final = {
    "demo": "Make one forecast, from an empty machine to a chart: Redis, worker, job, result.",
    "up": "Run Redis, workers, the API with its page, and Flower on this machine.",
    "forecast": "Forecast candle files: CSV or Parquet, folders of them, or patterns.",
    "feed": "Keep a universe of symbols current: append bars, and read the newest forecasts.",
    "replay": "Compute forecasts again from their manifests, and say whether they are equal.",
    "backtest": "Test a model on your own candles: forecast their past, and compare with what followed.",
    "calibrate": "Fit quantile corrections from a backtest, and register a version with them.",
    "finetune": "Train a model on your own candles: here, or as a job.",
    "worker": "Run a worker: load the model once, take jobs from the queue of its device.",
    "api": "Serve the HTTP API and its web page.",
    "mcp": "Serve tools for an agent over standard input and output, by the Model Context Protocol.",
    "flower": "Run Flower, a web page that shows workers and jobs.",
    "status": "Show all live workers, also busy and loading ones.",
    "job": "Explain one job: where it is, its attempts, what it waits for, what to do next.",
    "queues": "Show how many jobs wait, how fast they are taken, and dead messages.",
    "models": "Show the registered models that forecast jobs can name.",
    "devices": "Show the device that each name resolves to on this machine.",
    "check": "Check this installation, and print a remedy for each problem.",
    "healthcheck": "Exit with 0 if a worker on this host is ready, else with 1.",
    "completion": "Print the script that completes commands and options in a shell.",
}
