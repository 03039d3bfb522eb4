"""What a backtest leaves in its folder: report.json, report.html and forecasts.parquet."""

import html
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kronos_client.backtesting.store import PARTS
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import CLOSE, as_columns
from kronos_model.evaluation.calibration import references
from kronos_model.evaluation.naive import NAIVE_TITLES, NUM_SAMPLES, infer_season, why_not_seasonal
from kronos_model.evaluation.report import WindowBatch, make_report
from kronos_model.evaluation.scores import INTERVALS
from kronos_model.forecast import path_quantiles

if TYPE_CHECKING:
    from kronos_client.backtesting.run import BacktestRun


BATCH_WINDOWS: Final = 128
"""The most windows that are scored at once."""
BATCH_CLOSES: Final = 2**22
"""The most sampled closes of one forecaster that are scored at once: 32 MiB in each array."""


def write_report(run: "BacktestRun", on_batch: Callable[[], object]) -> dict[str, Any]:
    """Score the forecasts of a run, write the three files, and return the content of report.json."""
    plan, folder, names, windows = run.plan, run.folder, run.names(), run.common_windows
    season = infer_season(*(instrument.wall for instrument in plan.instruments))
    no_season = why_not_seasonal(plan.options.lookback, season)
    season = None if no_season else season
    scores = make_report(
        _scored(run, on_batch), plan.times.select(windows), season=season, seed=plan.options.seed
    )
    for model, name in enumerate(names):
        if caution := run.store.about(f"caution {model}", None):
            scores["models"][name]["verdict"].append(caution)
    num_left_out = len(plan.windows) - len(windows)
    report = {
        "asked": plan.options.as_dict(),
        "instruments": plan.describe_instruments(),
        "left_out": {"windows": num_left_out, "errors": dict(run.failed), "files": dict(plan.skipped)},
        "remarks": list(plan.remarks),
        "model_info": {name: run.store.about(f"model {model}", None) for model, name in enumerate(names)},
        "no_seasonal": no_season,
    } | scores
    with disk_errors(folder), atomic_write(folder / "forecasts.parquet") as staging:
        tables = _tables(run, on_batch)
        first = next(tables)
        with pq.ParquetWriter(staging, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
    with disk_errors(folder), atomic_write(folder / "report.html") as staging:
        write_page(staging, report, run)
    with disk_errors(folder), atomic_write(folder / "report.json") as staging:
        staging.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return report


def _scored(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[WindowBatch]:
    plan = run.plan
    for windows in _batches(run, on_batch):
        closes = np.stack([plan.window(window).bars[:, CLOSE] for window in windows]).astype(np.float64)
        past, actual = np.split(closes, [plan.options.lookback], axis=1)
        samples = {
            name: np.stack([*run.store.closes(model, windows)]).astype(np.float64)
            for model, name in enumerate(run.names())
        }
        yield WindowBatch(past, actual, samples)


def _tables(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[pa.Table]:
    """One row for each model, window and forecast bar."""
    plan, lookback, horizon = run.plan, run.plan.options.lookback, run.plan.options.horizon
    for model, name in enumerate(run.names()):
        for windows in _batches(run, on_batch):
            shown = [plan.window(window) for window in windows]
            past, actual = np.split(np.stack([window.bars for window in shown]), [lookback], axis=1)
            columns: dict[str, Any] = {
                "model": np.full(actual.shape[:2], name),
                "instrument": np.repeat([window.name for window in shown], horizon),
                "timestamp": np.stack([window.wall[lookback:] for window in shown]).astype(str),
                "window": np.repeat(np.asarray(windows, np.int32), horizon),
                "step": np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(windows)),
                "close_mean": np.stack([*run.store.closes(model, windows)]).mean(axis=1),
            }
            references_of_bars = (np.repeat(each[:, None], horizon, axis=1) for each in references(past))
            quantiles = np.stack([*run.store.quantiles(model, windows)], axis=1)
            parts = np.stack([*references_of_bars, actual, *quantiles]).astype(np.float32)  # (P, W, H, 6)
            for column, of_column in as_columns(parts).items():
                columns |= {f"{column}_{part}": values for part, values in zip(PARTS, of_column, strict=True)}
            yield pa.table({title: np.ravel(values) for title, values in columns.items()})


def _batches(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[Sequence[int]]:
    """The windows, as many at once as memory has room for."""
    options, windows = run.plan.options, run.common_windows
    each = max(options.samples, NUM_SAMPLES) * options.horizon
    number = min(BATCH_WINDOWS, max(1, BATCH_CLOSES // each))
    for first in range(0, len(windows), number):
        on_batch()
        yield windows[first : first + number]


MODEL_COLOURS: Final = ("#3d5a98", "#e07a5f", "#2a9d8f", "#8a5a9e")
RISING, FALLING, INK, FAINT = "#2a9d8f", "#e07a5f", "#2b2d35", "#9aa0ac"
SHOWN_WINDOWS: Final = 3
"""The best and the worst windows that are drawn, of the first model."""
SHOWN_LOOKBACK_BARS: Final = 60

PAGE: Final = Path(__file__).with_name("page.html")

CAPTION: Final = (
    "Scaled: in mean changes of the close from bar to bar of each window's lookback. Of the first three, "
    "lower is better."
)

SCORES: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "CRPS, scaled": lambda scores: scores["crps_scaled"],
    "wQL": lambda scores: scores["wql"],
    "MASE": lambda scores: scores["mase"],
    "held by 50 %": lambda scores: _percent(scores["coverage"]["0.5"]),
    "80 %": lambda scores: _percent(scores["coverage"]["0.8"]),
    "90 %": lambda scores: _percent(scores["coverage"]["0.9"]),
    "width of 80 %": lambda scores: scores["width_scaled"]["0.8"],
    "direction": lambda scores: _percent(scores["direction_accuracy"]),
    "volatility error": lambda scores: scores["volatility_error"],
    "IC": lambda scores: scores["ic"],
    "rank IC": lambda scores: scores["rank_ic"],
}


def write_page(path: Path, report: Mapping[str, Any], run: "BacktestRun") -> None:
    """Write the page of a report."""
    models: Mapping[str, Any] = report["models"]
    options, instruments = run.plan.options, len(run.plan.instruments)
    parts = [
        "<h1>Backtest</h1>",
        f"<p>{report['num_windows']} windows of {instruments} instrument{'s' * (instruments > 1)}: "
        f"{options.lookback} bars read, {options.horizon} forecast, {options.samples} paths.</p>",
    ]
    if left_out := report["left_out"]["windows"]:
        reasons = "; ".join(
            f"{code}: {error['message']}" for code, error in report["left_out"]["errors"].items()
        )
        parts.append(f"<p class=worse>{left_out} windows are left out. {html.escape(reasons)}</p>")
    if files := report["left_out"]["files"]:
        reasons = "; ".join(f"{file}: {why}" for file, why in files.items())
        parts.append(
            f"<p class=worse>{len(files)} files or instruments are left out. {html.escape(reasons)}</p>"
        )
    if remarks := report["remarks"]:
        parts.append(f"<p>{html.escape('. '.join(remarks))}.</p>")
    for name, model in models.items():
        lines = "".join(map(_verdict_line, model["verdict"]))
        parts.append(f"<h2>{html.escape(name)}</h2><ul>{lines}</ul>")
    parts += ["<h2>Scores</h2>", _score_table(report)]
    parts += ["<h2>Calibration</h2><div class=charts>", _drawn(_draw_reliability, models)]
    parts += [_drawn(_draw_pit, models), "</div><h2>By horizon</h2><div class=charts>"]
    parts += [_drawn(_draw_coverage, models), _drawn(_draw_error, models | report["naive"]), "</div>"]
    losses, windows = window_losses(run), run.common_windows
    order = np.argsort(losses)[: np.isfinite(losses).sum()]  # NaN last
    for title, chosen in (("Best", order[:SHOWN_WINDOWS]), ("Worst", order[::-1][:SHOWN_WINDOWS])):
        parts.append(f"<h2>{title} windows of {html.escape(run.names()[0])}</h2><div class=charts>")
        parts += [_drawn(_draw_window, run, windows[index]) for index in chosen]
        parts.append("</div>")
    page = Template(PAGE.read_text(encoding="utf-8"))
    path.write_text(page.substitute(content="\n".join(parts)), encoding="utf-8")


def window_losses(run: "BacktestRun") -> NDArray[np.float64]:
    """The first model's median error in each window, in mean one-bar changes of its lookback.

    NaN if the lookback's close never changes.
    """
    losses = []
    plan, windows = run.plan, run.common_windows
    for window, closes in zip(windows, run.store.closes(0, windows), strict=True):
        bars = plan.window(window).bars
        past, actual = np.split(bars[:, CLOSE].astype(np.float64), [plan.options.lookback])
        scale = np.abs(np.diff(past)).mean() or np.nan
        losses.append(np.abs(np.median(closes, axis=0) - actual).mean() / scale)
    return np.asarray(losses)


def _verdict_line(text: str) -> str:
    kind = "worse" if text.startswith("WORSE") else "better" if text.startswith("Better") else ""
    return f"<li class={kind!r}>{html.escape(text)}</li>"


def _score_table(report: Mapping[str, Any]) -> str:
    rows = [(name, model["scores"]) for name, model in report["models"].items()]
    rows += [(NAIVE_TITLES[name], scores) for name, scores in report["naive"].items()]
    head = "".join(f"<th scope=col>{title}</th>" for title in ("", *SCORES))
    body = ""
    for name, scores in rows:
        cells = "".join(f"<td>{_cell(of(scores))}</td>" for of in SCORES.values())
        body += f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>\n"
    return f"<div class=scroll><table><caption>{CAPTION}</caption><tr>{head}</tr>\n{body}</table></div>"


def _cell(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f}\u00a0%"


def _drawn(draw: Callable[..., None], *args: Any) -> str:
    """A chart as SVG text, without the declaration that a file of its own has."""
    text = io.StringIO()
    # The same report is the same file, and a name may have dollar signs.
    with rc_context({"svg.hashsalt": "kronos", "text.parse_math": False}):
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        draw(axes, *args)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=7)
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def _draw_reliability(axes: Axes, models: Mapping[str, Any]) -> None:
    shares = [float(share) for share in INTERVALS]
    axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1)
    for colour, (name, model) in zip(cycle(MODEL_COLOURS), models.items(), strict=False):
        held = [model["scores"]["coverage"][share] for share in INTERVALS]
        axes.plot(shares, held, "o-", color=colour, label=name)
    axes.set(title="Closes that an interval held", xlabel="asked", ylabel="held", xlim=(0.4, 1), ylim=(0, 1))


def _draw_pit(axes: Axes, models: Mapping[str, Any]) -> None:
    for colour, (name, model) in zip(cycle(MODEL_COLOURS), models.items(), strict=False):
        shares = model["scores"]["pit"]
        axes.stairs(shares, np.linspace(0, 1, len(shares) + 1), color=colour, label=name, linewidth=1.5)
    axes.axhline(1 / len(shares), color=FAINT, linestyle="--", linewidth=1)
    axes.set(title="Where closes fell among the paths (PIT)", xlabel="share of paths below", ylim=(0, None))


def _draw_coverage(axes: Axes, models: Mapping[str, Any]) -> None:
    axes.axhline(0.8, color=FAINT, linestyle="--", linewidth=1)
    for colour, (name, model) in zip(cycle(MODEL_COLOURS), models.items(), strict=False):
        held = model["by_horizon"]["coverage"]["0.8"]
        axes.plot(range(1, len(held) + 1), held, color=colour, label=name)
    axes.set(title="Held by the 80 % interval", xlabel="bars ahead", ylim=(0, 1))


def _draw_error(axes: Axes, forecasters: Mapping[str, Any]) -> None:
    colours = cycle(MODEL_COLOURS)
    styles = dict(zip(NAIVE_TITLES, ("-", "--", ":", "-."), strict=True))
    for name, forecaster in forecasters.items():
        losses = np.array(forecaster["by_horizon"]["crps_scaled"], dtype=np.float64)  # NaN for None
        look: Any = {"color": FAINT if name in styles else next(colours), "linestyle": styles.get(name, "-")}
        axes.plot(range(1, len(losses) + 1), losses, label=NAIVE_TITLES.get(name, name), **look)
    axes.set(title="CRPS, scaled", xlabel="bars ahead")


def _draw_window(axes: Axes, run: "BacktestRun", window: int) -> None:
    options, instrument = run.plan.options, run.plan.window(window)
    lookback = options.lookback
    shown = instrument.bars[max(0, lookback - SHOWN_LOOKBACK_BARS) :]
    begins = min(lookback, SHOWN_LOOKBACK_BARS)
    opens, highs, lows, closes = shown[:, :4].T
    at = np.arange(len(shown)) - begins
    axes.vlines(at, lows, highs, color=INK, linewidth=0.6)
    colours = np.where(closes >= opens, RISING, FALLING)
    axes.bar(at, closes - opens, bottom=opens, width=0.7, color=colours)
    low, median, high = path_quantiles(next(run.store.closes(0, [window])), (0.1, 0.5, 0.9))
    ahead = np.arange(options.horizon)
    axes.fill_between(ahead, low, high, color=MODEL_COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(ahead, median, color=MODEL_COLOURS[0], linewidth=1.2)
    axes.axvline(-0.5, color=FAINT, linewidth=0.9, linestyle="--")
    axes.set(title=f"{instrument.name}, {instrument.wall[lookback]}", xlabel="bars from the cut")
