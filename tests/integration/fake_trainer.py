"""A training process that trains nothing: it counts steps, and speaks as ``kronos_model.finetuning`` does.

Run as a script: CONFIG OUTPUT DEVICE. A step takes ``FAKE_STEP_S``, or no time once a file
``hurry`` is next to ``FAKE_LOG``; there are ``predictor.epochs`` of them.
Each is saved, and written with process and time to the file ``FAKE_LOG``. By the config's seed it misbehaves:
13 is killed before it saves anything, 14 diverges, 15 ignores SIGTERM.
"""

import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

PARITY = Path(__file__).parents[1] / "data" / "parity" / "a"


def send(event: str, **content: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
    sys.stdout.flush()


def log(what: str, **content: object) -> None:
    line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **content}
    with Path(os.environ["FAKE_LOG"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def end_with_parent() -> None:
    while os.read(0, 4096):  # a buffered read holds a lock that Python wants as it ends
        pass
    os._exit(75)


def main() -> int:
    config_path, output, device = sys.argv[1:]
    config = json.loads(Path(config_path).read_text())
    threading.Thread(target=end_with_parent, daemon=True).start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if config["seed"] == 15 else lambda *_: stop.set())
    run = Path(output)
    (run / "predictor").mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            send("error", code="RUN_LOCKED", message="another process trains there", field=None, details={})
            return 1
        return train(config, run, device, stop)


def train(config: dict, run: Path, device: str, stop: threading.Event) -> int:
    state, best = run / "predictor" / "state.safetensors", run / "predictor" / "best"
    step = int(state.read_text()) if state.exists() else 0
    hurry = Path(os.environ["FAKE_LOG"]).with_name("hurry")
    log("start", step=step, nice=os.nice(0), group="WORLD_SIZE" in os.environ, data=config["data"])
    send("started", device=device, device_warning=None, resumed=step > 0)
    (run / "data.json").write_text(json.dumps({"report": {}}))
    num_steps, seed = config["predictor"]["epochs"], config["seed"]
    while step < num_steps:
        if stop.wait(0 if hurry.exists() else float(os.environ["FAKE_STEP_S"])):
            send("stopped", best_checkpoint=str(best))
            log("stopped", step=step)
            return 75
        if seed == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 14:
            send(
                "error",
                code="TRAINING_DIVERGED",
                message="loss is nan",
                field="predictor",
                details={"step": step},
            )
            return 1
        step += 1
        best.mkdir(exist_ok=True)
        log("step", step=step)  # before it is saved: who is killed in between trains it again
        staging = state.with_suffix(".tmp")
        staging.write_text(str(step))
        staging.replace(state)
        send(
            "progress", stage="predictor", stage_index=0, num_stages=1, epoch=step, num_epochs=num_steps,
            step=step, num_steps=num_steps, loss=1.0 / step, learning_rate=1e-4, validation_loss=None,
            best_validation_loss=None, seconds_left=float(num_steps - step),
        )  # fmt: skip
    checkpoint = run / "checkpoint"
    shutil.copytree(PARITY / "model", checkpoint / "model", dirs_exist_ok=True)
    shutil.copytree(PARITY / "tokenizer", checkpoint / "tokenizer", dirs_exist_ok=True)
    metadata = {
        "trained": True,
        "max_context": 128,
        "config": config,
        "parent": {
            "model": config["start"]["model"],
            "revision": None,
            "tokenizer": None,
            "tokenizer_revision": None,
        },
        "metrics": {"predictor": {"steps": step}},
        "evaluation": None,
    }
    log("done", step=step)
    send("done", checkpoint=str(checkpoint), metadata=metadata)
    return 0


if __name__ == "__main__":
    sys.exit(main())
