"""Forecast jobs inside a worker: models, engines and their thread."""
