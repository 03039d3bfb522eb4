"""The asyncio core that ``ForecastClient``, ``AsyncForecastClient``, their fakes and the HTTP API share."""
