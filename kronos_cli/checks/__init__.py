"""The checks of ``kronos check``. Each problem comes with a remedy. No torch."""
