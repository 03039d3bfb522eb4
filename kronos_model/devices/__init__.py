"""The device to compute on. This file has its names, and no torch.

resolution.py    the choice of a device, and its description
probe.py         what the machine has
driver.py        the NVIDIA driver, and whether it is new enough
cores.py         the CPU cores that this process may use
"""

from typing import Final

ACCEPTED_DEVICES: Final = ("auto", "cpu", "cuda", "cuda:N", "mps")
DEVICE_PATTERN: Final = r"^(auto|cpu|cuda(:(0|[1-9][0-9]{0,2}))?|mps)$"
