"""Finetune from the command line: ``python -m kronos_model.finetuning --config FILE --output FOLDER``.

On several devices: ``torchrun --nproc_per_node=2 -m kronos_model.finetuning …``. Exit status 0 when done, 1
after an error, 2 for a wrong command line, 75 when stopped by SIGTERM or SIGINT: then the state is saved, and
the same command goes on from there.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kronos_model.errors import KronosError, TrainingStopped
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.config_file import load_config
from kronos_model.finetuning.reporting import JsonProgress, Listener, ProgressBar
from kronos_model.processes.exiting import collect_nothing_at_exit

EXIT_ERROR: Final = 1
EXIT_STOPPED: Final = 75  # EX_TEMPFAIL: try again later


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    # What libraries print belongs to people, and a parent reads standard output.
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    if options.supervised:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    listener: Listener = JsonProgress(sys.stdout) if options.progress == "json" else ProgressBar(sys.stderr)
    stop = threading.Event()

    def stop_by(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_by)
    try:
        config = _config(options)
        from kronos_model.finetuning.run import finetune  # after the config: importing torch takes seconds

        result = finetune(config, options.output, listeners=[listener], should_stop=stop.is_set)
    except TrainingStopped as stopped:
        _tell_stopped(listener, options)
        print(stopped.message, file=sys.stderr)
        return EXIT_STOPPED
    except KronosError as error:
        _tell_error(listener, error)
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_ERROR
    except Exception as error:  # a parent must hear of a defect as well
        _tell_error(listener, KronosError(f"a defect in training: {type(error).__name__}: {error}"))
        logging.getLogger(__name__).exception("training failed on a defect")
        return EXIT_ERROR
    if options.progress == "bar" and os.environ.get("RANK", "0") == "0":
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
        help="folder of the run; one that was begun there is taken up again (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--progress", choices=("bar", "json"), default="bar", help="for people, or as JSON lines for programs"
    )
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="end at once when standard input closes, as a parent's child",
    )
    return parser


def _config(options: argparse.Namespace) -> FinetuneConfig:
    overrides = list(options.overrides)
    if options.data:
        overrides.append(f"data.path={json.dumps(options.data)}")
    if options.device:
        overrides.append(f"training_device={json.dumps(options.device)}")
    return load_config(options.config, overrides)


def _tell_error(listener: Listener, error: KronosError) -> None:
    listener(
        {
            "event": "error",
            "code": error.code,
            "message": error.message,
            "field": error.field,
            "details": error.details,
        }
    )


def _tell_stopped(listener: Listener, options: argparse.Namespace) -> None:
    from kronos_model.finetuning.run_folder import RunFolder

    best = RunFolder(options.output).best_so_far()
    event: dict[str, Any] = {"event": "stopped", "best_checkpoint": None if best is None else str(best)}
    listener(event)


def _end_with_parent() -> None:
    """Nothing is saved: whoever goes on with the run may have begun."""
    while os.read(sys.stdin.fileno(), 4096):  # a buffered read holds a lock that Python wants as it ends
        pass
    os._exit(EXIT_STOPPED)


if __name__ == "__main__":
    collect_nothing_at_exit()
    sys.exit(main())
