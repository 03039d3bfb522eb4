"""The device to compute on: its choice, its properties, its cores."""
