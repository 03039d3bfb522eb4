"""A fake of ``isolation_child.py``: a job's ``do`` says what happens to it."""

import json
import os
import signal
import sys
import time


def say(event: str, **info: object) -> None:
    print(json.dumps({"event": event, **info}), flush=True)  # noqa: T201


hello = json.loads(sys.stdin.readline())
if hello["load"] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if hello["load"] != "well":
    say("unavailable", error=["CHECKPOINT_MISSING", "not there", None, {}])
    raise SystemExit(1)
print("this is no event")  # noqa: T201
say("ready")
for line in sys.stdin:
    job = json.loads(line)
    do = job["job"]["do"]
    if do in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), signal.Signals[do])
    if do == "idle":
        raise SystemExit(90)
    if do == "exit":
        raise SystemExit(70)
    if do == "fail":
        say("error", error=["NOT_FINITE", "row 3 holds NaN", "series.0.close", {"row": 3}])
        continue
    if do == "hang":
        say("progress", bars_done=1, bars_total=2)
        time.sleep(3600)
    say("result", result={"pid": os.getpid(), "job": job})
