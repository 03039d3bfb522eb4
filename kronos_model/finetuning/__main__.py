"""Finetune from the command line: ``python -m kronos_model.finetuning --config FILE --output FOLDER``.

On several devices or machines: ``torchrun --nproc-per-node=2 -m kronos_model.finetuning …``. The exit status
is 0 if done, 1 after an error, 2 for a wrong command line, 70 if the device or another process failed, and 75
if stopped by SIGTERM or SIGINT; torchrun itself then exits with 1. After 70 the same command resumes the run
from its last save; after 75 nothing is lost.
"""

import argparse
import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kronos_model.errors import DeviceLost, KronosError, TrainingStopped
from kronos_model.finetuning.config import FinetuneConfig, load_config
from kronos_model.finetuning.reporting import JsonProgress, Listener, ProgressBar
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.processes.children import collect_nothing_at_exit

EXIT_ERROR: Final = 1
EXIT_DEVICE_LOST: Final = 70  # EX_SOFTWARE
EXIT_STOPPED: Final = 75  # EX_TEMPFAIL: try again later
PARENT_POLL_S: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    options = _parser().parse_args(arguments)
    # A parent process reads standard output, so logs go to standard error.
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    if options.supervised:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    listener: Listener = JsonProgress(sys.stdout) if options.progress == "json" else ProgressBar(sys.stderr)
    is_first = os.environ.get("RANK", "0") == "0"
    stop = threading.Event()

    def stop_by(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_by)
    try:
        config = _config(options)
        if is_first:
            listener({"event": "phase", "phase": "Loading PyTorch"})
        from kronos_model.finetuning.run import finetune  # after the config: importing torch takes seconds

        result = finetune(
            config, options.output, listeners=[listener], should_stop=stop.is_set, engine=options.engine
        )
    except TrainingStopped as stopped:
        best = RunFolder(options.output).best_so_far()
        listener({"event": "stopped", "best_checkpoint": None if best is None else str(best)})
        print(stopped.message, file=sys.stderr)
        return EXIT_STOPPED
    except DeviceLost as error:  # without an event, so that a parent starts training again
        print(error.message, file=sys.stderr)
        return EXIT_DEVICE_LOST
    except KronosError as error:
        _report_error(listener, error)
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_ERROR
    except Exception as error:  # a defect must reach the parent process too
        _report_error(listener, KronosError(f"a defect in training: {type(error).__name__}: {error}"))
        logging.getLogger(__name__).exception("training failed on a defect")
        return EXIT_ERROR
    if options.progress == "bar" and is_first:
        print(result.checkpoint)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kronos_model.finetuning", description="Finetune Kronos on your own candles."
    )
    parser.add_argument("--config", type=Path, help="YAML or JSON file; see docs/use/finetuning.md")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE",
        help="a field of the config, such as predictor.epochs=3; may be repeated",
    )  # fmt: skip
    parser.add_argument("--data", nargs="+", help="CSV or Parquet files or folders; overrides data.path")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:N or mps; overrides training_device")
    parser.add_argument(
        "--output", type=Path, default=Path("output/finetuning"),
        help="folder of the run; a run that was started there is resumed (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("auto", "torch"), default="auto",
        help="what computes the comparison on a CPU: native kernels if it can use them, or PyTorch",
    )  # fmt: skip
    parser.add_argument(
        "--progress", choices=("bar", "json"), default="bar", help="bar for people, json for programs"
    )
    parser.add_argument(
        "--supervised", action="store_true",
        help="end at once when standard input closes, for use as a child process",
    )  # fmt: skip
    return parser


def _config(options: argparse.Namespace) -> FinetuneConfig:
    overrides = list(options.overrides)
    if options.data:
        overrides.append(f"data.path={json.dumps(options.data)}")
    if options.device:
        overrides.append(f"training_device={json.dumps(options.device)}")
    return load_config(options.config, overrides)


def _report_error(listener: Listener, error: KronosError) -> None:
    content = {"code": error.code, "message": error.message, "field": error.field, "details": error.details}
    listener({"event": "error", **content})


def _end_with_parent() -> None:
    """End the process without a save: another process may have resumed the run already."""
    stdin, parent = sys.stdin.fileno(), os.getppid()
    # torchrun passes on its own parent's standard input, and may itself be killed.
    while os.getppid() == parent:
        # A buffered read holds a lock that Python needs at exit.
        if select.select([stdin], [], [], PARENT_POLL_S)[0] and not os.read(stdin, 4096):
            break
    os._exit(EXIT_STOPPED)


if __name__ == "__main__":
    collect_nothing_at_exit()
    sys.exit(main())
