"""Take the pictures of every view of the page for the documentation: ``python -m tests.page.screens``.

The answers are examples of the contract, so that the pictures change with the page alone.
"""

import io
import json
import shutil
from datetime import datetime, timedelta
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from kronos_client.contract.schemas import example
from kronos_client.core.job_facts import NEXT
from kronos_model.bars.synthetic import candles
from tests.integration.conftest import ROOT
from tests.page.conftest import CHROMIUM, RoutedVisit
from tests.page.fake_api import FakeApi, serve
from tests.page.test_routed import end

FOLDER: Final = ROOT / "docs" / "images" / "page"
SIZES: Final = {1440: 900, 1024: 768, 390: 844}
THEMES: Final = ("light", "dark")
ADDRESSES: Final = {
    "forecast": "#/forecast",
    "backtest": "#backtests/one",
    "finetune": "#finetunes/two",
    "feeds": "#/feeds",
    "workers": "#/workers",
    "jobs": "#/jobs",
}
SENT_S: Final = 1_767_261_600
DEAD: Final = {
    "at": SENT_S,
    "reason": "it names no task",
    "queue": "cpu",
    "id": None,
    "num_bytes": 184,
}
EXPLANATION: Final = {
    "id": "three",
    "where": "held",
    "num_before": None,
    "left_s": 7,
    "attempts": [
        {"begun_at": SENT_S, "ended_at": SENT_S + 65, "worker": "celery@gpu-1", "how": "process died"},
        {"begun_at": SENT_S + 130, "ended_at": None, "worker": "celery@gpu-2", "how": None},
    ],
    "bars": [14, 24],
    "error": None,
    "is_cancel_requested": False,
    "dead_reason": None,
    "next": NEXT["held"],
}
FAILURE: Final = "The high of row 212 is below its low: 38,214.5 and 38,241.0."
STEP: Final = "Correct row 212, then choose the file again."
FORECAST: Final = "Up 0.4 % by Fri, Jan 2, 10:00 AM London time, 80 % range 1.0838 to 1.0921"
UNCLEAR: Final = "kronos-tiny: no clear advantage"
TESTED: Final = f"desk@3: 6.1 % better than the baseline; {UNCLEAR}"
TRAINED: Final = "desk@3: 7.7 % better than the baseline"
STORED: Final = "crypto-hourly.parquet"
NAMES: Final = {"NeoQuasar/Kronos-small": "kronos-tiny", "crypto-hourly": "desk"}
FORMS: Final = {
    "backtest": {"backtest-windows": "8", "backtest-horizon": "3"},
    "finetune": {"finetune-name": "desk", "epochs": "9"},
}
LOADS: Final = (0.2, 0.5, 0.4, 0.9, 0.7, 0.8)
READ_AGAIN: Final = "document.dispatchEvent(new Event('visibilitychange'))"
READ_EVERY_S: Final = 4
NUM_COLOURS: Final = 256
RARE_TOO: Final = Image.Quantize.MAXCOVERAGE
"""Keeps the colour of a single dot; the default method made a red one brown."""
SETTLED_MS: Final = 600


def answers() -> dict[str, Any]:
    """What the API of the pictures answers."""
    worker = example("worker-status")
    card = {"device": "cuda:0", "device_description": {"name": "NVIDIA H100"}, "queue": "gpu"}
    gpus = [worker | card | {"node": f"celery@gpu-{number}", "slots": 512} for number in (1, 2)]
    trainer = worker | {"node": "trainer@desk", "role": "finetune", "queue": "cpu.finetune", "training": None}
    lengths = {"high": 0, "normal": 0, "low": 0}
    queues = {
        name: {"ready": ready, "lengths": lengths}
        for name, ready in {"gpu": 2, "cpu": 1, "cpu.finetune": 1}.items()
    }
    own = {"id": "kronos-tiny", "kind": "own", "lookback": 416, "min_lookback": 32, "pred_len": 48}
    models = [own, {"id": "desk@3"}]
    return {
        "workers": {"workers": [*gpus, worker, trainer], "queues": queues},
        "models": {"models": models},
        "dead-messages": {"total": 1, "messages": [DEAD]},
        "datasets": {"datasets": [{"name": STORED}, {"name": "eurusd.csv"}]},
        "backtests/one/events": end(state="done", result=tested()),
        "forecasts/three": {"state": "running", "bars_done": 14, "bars_total": 24, "seconds_left": 7},
        "forecasts/four": {"state": "queued", "jobs_before": 2, "seconds_left": 40},
        **feed(),
        "jobs/three/explanation": EXPLANATION,
        "finetunes/two/events": end(state="done", result=named(example("finetune-result")), before=losses()),
    }


def feed() -> dict[str, Any]:
    """A feed of six symbols, with scores."""
    event, names = "close>last at end", ("AAPL", "AMZN", "GOOG", "META", "MSFT", "NVDA")
    close = (226.47, 186.33, 166.67, 527.32, 413.12, 128.44)
    rows = [
        {
            "id": name, "last_time": "2024-08-29T15:55:00-04:00", "age_s": 12.0, "overdue_s": 0.0,
            "is_current": True, "close_mean": (1 + 0.001 * (number - 2)) * last,
            "close_q0.1": 0.988 * last, "close_q0.9": 1.011 * last,
            event: 0.39 + 0.05 * number, "high>last+1% at 12": 0.31 - 0.03 * number, "drift": None,
            "error": None, "closes": walk(number, last)["close"],
        }
        for number, (name, last) in enumerate(zip(names, close, strict=True))
    ]  # fmt: skip
    rows[2] |= {"drift": "too_narrow"}
    rows[4] |= {"is_current": False, "overdue_s": 240.0}
    scores = {"model": "desk@3", "num_scored": 21_384, "coverage_80": 0.791, "pinball_ratio": 0.982}
    options = {"events": [event, "high>last+1% at 12"]}
    times = [*five_minutes("2024-08-29T11:00:00-04:00", 60), *five_minutes("2024-08-30T09:30:00-04:00", 12)]
    known = walk(5, close[-1])

    def forecast(num_known: int) -> dict[str, Any]:
        spread = {"0.025": -2.4, "0.1": -1.2, "0.25": -0.5, "0.5": 0.1, "0.75": 0.6, "0.9": 1.1, "0.975": 2.1}
        last, lean = known["close"][num_known - 1], 0.2 * (num_known % 3)
        fan = {
            level: {"close": [last * (1 + 0.0029 * (wide + lean) * step**0.5) for step in range(1, 13)]}
            for level, wide in spread.items()
        }
        return {"timestamps": times[num_known : num_known + 12], "mean": fan["0.5"], "quantiles": fan}

    newest = {"last_time": times[59], "model": {"id": "desk@3"}, "forecast": forecast(60)}
    past = [forecast(number) | {"version": number} for number in range(49, 60)]
    table = newest["forecast"]["quantiles"]
    rows[5] |= {
        f"close_{name}": table[level]["close"][-1]
        for name, level in (("mean", "0.5"), ("q0.1", "0.1"), ("q0.9", "0.9"))
    }
    return {
        "feeds": {"feeds": ["us-5min"]},
        "feeds/us-5min": {"name": "us-5min", "options": options, "last_update": "1-0"},
        "feeds/us-5min/latest": {"rows": rows},
        "feeds/us-5min/scores": {"rows": [{"id": None, **scores}]},
        "feeds/us-5min/series/NVDA": {
            "bars": {"timestamps": times[:60], **known},
            "newest": newest,
            "past": past,
        },
    }


def five_minutes(first: str, bars: int) -> list[str]:
    """The times of so many bars."""
    begin = datetime.fromisoformat(first)
    return [(begin + timedelta(minutes=5 * step)).isoformat() for step in range(bars)]


def walk(seed: int, last: float, bars: int = 60) -> dict[str, list[float]]:
    """Synthetic candles up to a last close."""
    made = candles(seed, bars).as_dict()
    by = dict.fromkeys(("open", "high", "low", "close"), last / float(made["close"][-1])) | {"volume": 1.0}
    return {name: [round(scale * float(value), 2) for value in made[name]] for name, scale in by.items()}


def named(result: dict[str, Any]) -> dict[str, Any]:
    """An example of a result, with the models that the answers offer."""
    text = json.dumps(result)
    for theirs, ours in NAMES.items():
        text = text.replace(theirs, ours)
    return dict(json.loads(text))


def losses(num_steps: int = 40, num_epochs: int = 8) -> list[dict[str, Any]]:
    """The progress of a training whose error falls."""
    left = [1 / (1 + step / 6) for step in range(1, num_steps + 1)]
    begun = {"stage": "predictor", "num_steps": 240 * num_steps, "num_epochs": num_epochs, "device": "cpu"}
    return [
        begun | {
            "step": 240 * step, "epoch": 1 + (step - 1) * num_epochs // num_steps, "seconds_left": None,
            "loss": 2.28 + 0.5 * rest + 0.02 * (step * 7 % 5 - 2) * rest**0.5, "learning_rate": 4e-5,
            "validation_loss": 2.31 + 0.46 * rest if step % (num_steps // num_epochs) == 0 else None,
        }
        for step, rest in enumerate(left, start=1)
    ]  # fmt: skip


def tested() -> dict[str, Any]:
    """The example of a backtest, with models that differ and more of the worst windows."""
    result = named(example("backtest-result"))
    *_, second = result["report"]["models"].values()
    second["scores"] |= {"crps_scaled": 1.07, "coverage": {"0.5": 0.52, "0.8": 0.81, "0.9": 0.91}}
    second["scores"]["pit"].reverse()
    baseline = "a drift-free bootstrap of the lookback"
    second["verdict"][:2] = [
        f"Better than {baseline}, the last value with a spread and the lookback's trend.",
        f"6.1 % better than {baseline} (95 % interval +1.9 to +10.3 %).",
    ]
    second["verdict"][2] = "4.9 % better than kronos-tiny (95 % interval +0.8 to +9.0 %)."
    clear = (("difference", 4.9), ("low", 4.9), ("high", 4.9))
    bootstrap = second["against"]["bootstrap"]
    for by in (bootstrap, *bootstrap["by_span"]):
        by |= {end: by[end] + more for end, more in clear} | {"verdict": "better"}
    bootstrap["by_span"][-1]["verdict"] = "unclear"
    for values, scale in (
        (second["by_horizon"]["crps_scaled"], 0.947),
        (second["by_horizon"]["coverage"]["0.8"], 1.041),  # their mean is the coverage of all bars
    ):
        values[:] = [scale * value for value in values]
    *_, held = result["report"]["portfolio"]["models"].values()
    held["equity"] = [1 + 0.6 * (value - 1) + 0.01 * place for place, value in enumerate(held["equity"])]
    held |= {
        "rank_ic": [0.25, 0.125, 0.4375],
        "hit_rate": 0.875,
        "return_before_costs": 0.0149,
        "return": 0.0121,
        "max_drawdown": 0.0468,
    }
    (worst,) = result["report"]["worst_windows"]
    result["report"]["worst_windows"] = [
        worst | {"instrument": name, "error": worst["error"] - less}
        for name, less in {"ETH-USD": 0, "BTC-USD": 0.9, "SOL-USD": 1.3}.items()
    ]
    return result


def jobs() -> str:
    """The list of jobs that the browser of the pictures remembers."""
    sent = [
        ("forecasts/three", "eurusd.csv, 24 bars", 0, "running", ""),
        ("forecasts/four", "us-5min.parquet, 48 bars", 2, "queued", ""),
        ("backtests/one", f"Backtest on {STORED}", 25, "done", TESTED),
        ("forecasts/five", "nikkei.csv, 60 bars", 31, "failed", FAILURE),
        ("forecasts/six", "eurusd.csv, 48 bars", 64, "done", FORECAST),
        ("finetunes/two", f"Training of desk on {STORED}", 90, "done", TRAINED),
        ("forecasts/seven", "gold-daily.csv, 20 bars", 118, "cancelled", ""),
        ("backtests/eight", "Backtest on eurusd.csv", 147, "done", UNCLEAR),
        ("forecasts/nine", "nikkei.csv, 24 bars", 480, "expired", ""),
    ]
    kept = [
        {
            "address": address,
            "title": title,
            "at": (SENT_S - 60 * ago) * 1000,
            "state": state,
            "note": note,
            "next": STEP if state == "failed" else "",
        }
        for address, title, ago, state, note in sent
    ]
    stored = {"kronos.jobs": kept} | {f"kronos.job.{address}": {} for address, *_ in sent}
    return ";".join(f"localStorage['{name}'] = {json.dumps(json.dumps(of))}" for name, of in stored.items())


def read_loads(visit: RoutedVisit) -> None:
    """Let the page read the workers several times, with more and less to do."""
    workers = visit.answers["workers"]["workers"]
    begin_s = visit.page.evaluate("Date.now() / 1000")
    for place in range(2 * len(LOADS)):
        loads = [LOADS[(place + number) % len(LOADS)] for number in range(len(workers))]
        visit.answers["workers"] |= {
            "workers": [
                worker | {"sequences_running": int(load * worker["slots"]), "bars_per_s": 2000 * load}
                if worker["role"] == "forecast"
                else worker
                for worker, load in zip(workers, loads, strict=True)
            ]
        }
        visit.page.clock.set_fixed_time(begin_s + READ_EVERY_S * place)
        with visit.page.expect_response("**/v1/workers"):
            visit.page.evaluate(READ_AGAIN)


def shoot(browser: Browser, api: FakeApi, width: int, theme: str) -> None:
    """Take the picture of each view in one size and theme."""
    size = {"width": width, "height": SIZES[width]}
    context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    api.answers = answers()
    visit = RoutedVisit(context.new_page(), api)
    visit.page.goto(visit.url)
    for view, address in ADDRESSES.items():
        visit.page.evaluate(jobs())
        visit.page.goto(visit.url + address)
        visit.page.reload()
        for field, value in FORMS.get(view, {}).items():
            visit.page.fill(f"#{field}", value)
        if view == "backtest":
            visit.page.select_option("#backtest-data", STORED)
            visit.page.select_option("#backtest-model", "kronos-tiny")
            visit.page.select_option("#backtest-other", "desk@3")
        visit.page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
        if view == "workers":
            read_loads(visit)
        if view == "feeds" and width > 390:
            visit.page.click("#feed-rows tbody button >> text=NVDA")
            visit.page.wait_for_selector("#feed-figure")
            visit.page.wait_for_timeout(SETTLED_MS)  # it comes into view
            visit.page.mouse.move(0, 0)
            visit.page.evaluate("scrollTo(0, 0)")
        if view == "jobs":
            visit.page.click("#recent-jobs button[aria-expanded]")
            visit.page.mouse.move(0, 0)
        visit.page.wait_for_timeout(SETTLED_MS)
        picture = Image.open(io.BytesIO(visit.page.screenshot(full_page=False)))
        small = picture.convert("RGB").quantize(NUM_COLOURS, RARE_TOO, kmeans=1, dither=Image.Dither.NONE)
        small.save(FOLDER / f"{view}-{width}-{theme}.png", optimize=True)
    context.close()
    assert visit.errors == [], visit.errors


def main() -> None:
    """Replace the pictures."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with sync_playwright() as playwright, serve() as api:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in SIZES:
            for theme in THEMES:
                shoot(browser, api, width, theme)
        browser.close()


if __name__ == "__main__":
    main()
