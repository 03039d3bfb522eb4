"""The quality of forecasts, compared with actual bars and with naive forecasts. No torch."""
