"""Imported into a finetuning worker under test (``--include``): its training processes train nothing."""

import sys
from pathlib import Path

from worker.finetuning import run as finetune_run

SCRIPT = Path(__file__).with_name("fake_trainer.py")

finetune_run.training_command = lambda config, output, device: [
    sys.executable,
    str(SCRIPT),
    config,
    output,
    device,
]
