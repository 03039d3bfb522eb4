"""Names of devices, as settings, configs and jobs give them. No torch."""

from typing import Final

ACCEPTED_DEVICES: Final = ("auto", "cpu", "cuda", "cuda:N", "mps")
DEVICE_PATTERN: Final = r"^(auto|cpu|cuda(:(0|[1-9][0-9]{0,2}))?|mps)$"
