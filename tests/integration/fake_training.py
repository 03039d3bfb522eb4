"""Imported into a finetuning worker under test (``--include``): its training processes train nothing.

Nor does it look for a device, which is most of what starting such a worker takes.
"""

import sys
from pathlib import Path

from worker import lifecycle
from worker.training import finetune_run

SCRIPT = Path(__file__).with_name("fake_trainer.py")

finetune_run.training_command = lambda arguments, processes: [sys.executable, str(SCRIPT), *arguments[1:6:2]]
lifecycle.probed_device = lambda: {  # type: ignore[assignment]
    "device": "cpu",
    "warning": None,
    "description": {"name": "a CPU", "kind": "cpu", "index": None, "versions": {}},
}
