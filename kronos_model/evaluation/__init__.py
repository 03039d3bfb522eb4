"""How good forecasts are, against what actually came and against naive forecasts. No torch."""
