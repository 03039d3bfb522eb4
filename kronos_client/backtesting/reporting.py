"""What a backtest leaves in its folder: report.json, report.html and forecasts.parquet."""

import html
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from kronos_client.contract.columns import shortest
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import CLOSE, ONLY_CLOSE, as_columns, has_one_value
from kronos_model.bars.timestamps import write_times
from kronos_model.evaluation.calibration import references
from kronos_model.evaluation.naive import NAIVE_TITLES, NUM_SAMPLES, infer_season, why_not_seasonal
from kronos_model.evaluation.portfolio import PORTFOLIOS, ReturnWindows, portfolio_line, portfolio_report
from kronos_model.evaluation.report import WindowBatch, make_report
from kronos_model.evaluation.scores import INTERVALS
from kronos_model.evaluation.windows import Array
from kronos_model.forecast import path_quantiles
from kronos_model.text import plural

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
    options, times = plan.options, plan.times.select(windows)
    losses, returns = list[Array](), list[list[Array]]()
    scores = make_report(
        _scored(run, on_batch, returns), times, season=season, seed=options.seed, bootstrap_losses=losses
    )
    portfolio = _portfolio(run, returns)
    no_portfolio = NO_COMMON_TIMES if len(plan.instruments) > 2 else TOO_FEW_INSTRUMENTS
    for name, model in scores["models"].items():
        model["verdict"] += [] if portfolio is None else [portfolio_line(portfolio, name)]
    num_of_one = sum(has_one_value(as_columns(instrument.bars)) for instrument in plan.instruments)
    of_one = f"One value a bar: {num_of_one} of {plural(len(plan.instruments), 'instrument')}. {ONLY_CLOSE}."
    for model, name in enumerate(names):
        scores["models"][name]["verdict"] += [of_one] if num_of_one else []
        if caution := run.store.about(f"caution {model}", None):
            scores["models"][name]["verdict"].append(caution)
    num_left_out = len(plan.windows) - len(windows)
    ranked = _ranked(run)
    report = {
        "asked": options.as_dict(),
        "instruments": plan.describe_instruments(),
        "left_out": {"windows": num_left_out, "errors": dict(run.failed), "files": dict(plan.skipped)},
        "remarks": list(plan.remarks),
        "model_info": {name: run.store.about(f"model {model}", None) for model, name in enumerate(names)},
        "no_seasonal": no_season,
        "portfolio": portfolio,
        "no_portfolio": None if portfolio else no_portfolio,
        "worst_windows": [_drawable(run, *each) for each in ranked[::-1][:SHOWN_WINDOWS]],
    } | scores
    with disk_errors(folder), atomic_write(folder / "forecasts.parquet") as staging:
        tables = _tables(run, on_batch, {"group": times.groups, "bootstrap_loss": losses[0]})
        first = next(tables)
        with pq.ParquetWriter(staging, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
    with disk_errors(folder), atomic_write(folder / "report.html") as staging:
        write_page(staging, report, run, [window for window, _ in ranked])
    with disk_errors(folder), atomic_write(folder / "report.json") as staging:
        staging.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return report


def _scored(
    run: "BacktestRun", on_batch: Callable[[], object], returns: list[list[Array]]
) -> Iterator[WindowBatch]:
    plan = run.plan
    for windows in _batches(run, on_batch):
        closes = np.stack([plan.window(window).bars[:, CLOSE] for window in windows]).astype(np.float64)
        past, actual = np.split(closes, [plan.options.lookback], axis=1)
        samples = {
            name: np.stack([*run.store.closes(model, windows)]).astype(np.float64)
            for model, name in enumerate(run.names())
        }
        medians = [np.median(of_model, axis=1) for of_model in samples.values()]
        momentum = past[:, -1] / past[:, 0] - 1
        returns.append([momentum, *(each / past[:, -1:] - 1 for each in (actual, *medians))])
        yield WindowBatch(past, actual, samples)


def _portfolio(run: "BacktestRun", returns: Sequence[Sequence[Array]]) -> dict[str, Any] | None:
    """The portfolio by the returns of all batches: of momentum, actual, and each model's median."""
    plan, windows = run.plan, run.common_windows
    momentum, actual, *predicted = (np.concatenate(each) for each in zip(*returns, strict=True))
    return portfolio_report(
        ReturnWindows(
            dict(zip(run.names(), predicted, strict=True)), actual, momentum,
            plan.windows.instrument_index[windows], plan.times.begins[windows],
            np.array([plan.window(window).instants[-1] for window in windows]),
        ),
        top=plan.options.top, cost_bps=plan.options.cost_bps, lags=plan.times.lags, seed=plan.options.seed,
    )  # fmt: skip


def _ranked(run: "BacktestRun") -> list[tuple[int, float]]:
    """Each window with the first model's median error, in mean one-bar changes of its lookback, best first.

    A window whose lookback's close never changes is left out.
    """
    errors, windows = [], run.common_windows
    for window, closes in zip(windows, run.store.closes(0, windows), strict=True):
        bars = run.plan.window(window).bars
        past, actual = np.split(bars[:, CLOSE].astype(np.float64), [run.plan.options.lookback])
        if scale := np.abs(np.diff(past)).mean():
            errors.append((window, float(np.abs(np.median(closes, axis=0) - actual).mean() / scale)))
    return sorted(errors, key=lambda each: each[1])


def _drawable(run: "BacktestRun", window: int, error: float) -> dict[str, Any]:
    """A window as ``_draw_window`` shows it, by what each model forecast."""
    instrument, bars = run.plan.window(window), SHOWN_LOOKBACK_BARS + run.plan.options.horizon
    columns = dict(zip(("open", "high", "low", "close"), instrument.bars[-bars:].T, strict=False))
    forecasts = {
        name: path_quantiles(next(run.store.closes(model, [window])), SHOWN_LEVELS)
        for model, name in enumerate(run.names())
    }
    return {
        "instrument": instrument.name,
        "error": error,
        "timestamps": [*write_times(instrument.wall, instrument.instants, instrument.is_aware)][-bars:],
        **{name: shortest(values) for name, values in columns.items()},
        "quantiles": {
            name: dict(zip(map(str, SHOWN_LEVELS), map(shortest, quantiles), strict=True))
            for name, quantiles in forecasts.items()
        },
    }


def _tables(
    run: "BacktestRun", on_batch: Callable[[], object], of_windows: Mapping[str, NDArray[Any]]
) -> Iterator[pa.Table]:
    """One row for each model, window and forecast bar; ``of_windows`` are columns by window, (W,)."""
    plan, lookback, horizon = run.plan, run.plan.options.lookback, run.plan.options.horizon
    for model, name in enumerate(run.names()):
        for windows in _batches(run, on_batch):
            shown = [plan.window(window) for window in windows]
            past, actual = np.split(np.stack([window.bars for window in shown]), [lookback], axis=1)
            columns: dict[str, Any] = {
                "model": np.full(actual.shape[:2], name),
                "instrument": np.repeat([window.name for window in shown], horizon),
                "timestamp": np.array(
                    [write_times(each.wall, each.instants, each.is_aware)[lookback:] for each in shown]
                ),
                "window": np.repeat(np.asarray(windows, np.int32), horizon),
                "step": np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(windows)),
                "close_mean": np.stack([*run.store.closes(model, windows)]).mean(axis=1),
            }
            at = np.searchsorted(run.common_windows, windows)
            columns |= {title: np.repeat(values[at], horizon) for title, values in of_windows.items()}
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
DASHES: Final = ("-", "--", ":", "-.", (0, (5, 1)), "--", ":")
STYLES: Final = dict(zip((*NAIVE_TITLES.values(), *PORTFOLIOS.values()), DASHES, strict=True))
"""Of the lines of what a model must beat."""
SHOWN_WINDOWS: Final = 3
"""The best and the worst windows that are drawn, of the first model."""
SHOWN_LOOKBACK_BARS: Final = 60
SHOWN_LEVELS: Final = (0.1, 0.5, 0.9)

PAGE: Final = Path(__file__).with_name("page.html")

CAPTION: Final = (
    "Scaled: in mean changes of the close from bar to bar of each window's lookback. Of the first three, "
    "lower is better."
)

Columns = Mapping[str, Callable[[Mapping[str, Any]], Any]]
"""Of a table: what each shows of a row's figures."""

NO_COMMON_TIMES: Final = "no three instruments have windows that begin at the same time: use --stride"
TOO_FEW_INSTRUMENTS: Final = "a portfolio needs three instruments or more"
PORTFOLIO_CAPTION: Final = (
    "Long the top {top} by predicted return, short the bottom {top}, for a horizon at a time: {num_periods} "
    "periods, costs of {cost_bps:g} bps. Rank IC over {num_times} times; its t by Newey and West."
)

SCORES: Final[Columns] = {
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
PORTFOLIO: Final[Columns] = {
    "rank IC at the end": lambda view: view["rank_ic"][-1],
    "t": lambda view: view["rank_ic_t"][-1],
    "hits": lambda view: _percent(view["hit_rate"]),
    "return a period": lambda view: _percent(view["return"], 2),
    "before costs": lambda view: _percent(view["return_before_costs"], 2),
    "turnover": lambda view: view["turnover"],
    "largest drawdown": lambda view: _percent(view["max_drawdown"]),
}


def write_page(path: Path, report: Mapping[str, Any], run: "BacktestRun", best_first: Sequence[int]) -> None:
    """Write the page of a report. ``best_first`` are the windows that may be drawn."""
    models: Mapping[str, Any] = report["models"]
    options, instruments = run.plan.options, len(run.plan.instruments)
    parts = [
        "<h1>Backtest</h1>",
        f"<p>{plural(report['num_windows'], 'window')} of {plural(instruments, 'instrument')}: "
        f"{options.lookback} bars read, {options.horizon} forecast, {options.samples} paths.</p>",
    ]
    if left_out := report["left_out"]["windows"]:
        reasons = "; ".join(
            f"{code}: {error['message']}" for code, error in report["left_out"]["errors"].items()
        )
        parts.append(f"<p class=worse>{plural(left_out, 'window')} left out. {html.escape(reasons)}</p>")
    if files := report["left_out"]["files"]:
        reasons = "; ".join(f"{file}: {why}" for file, why in files.items())
        parts.append(
            f"<p class=worse>Files or instruments left out: {len(files)}. {html.escape(reasons)}</p>"
        )
    if remarks := report["remarks"]:
        parts.append(f"<p>{html.escape('. '.join(remarks))}.</p>")
    for name, model in models.items():
        lines = "".join(map(_verdict_line, model["verdict"]))
        parts.append(f"<h2>{html.escape(name)}</h2><ul>{lines}</ul>")
    ahead = range(1, options.horizon + 1)
    rows = [(name, {**model, **model["scores"]}) for name, model in models.items()]
    rows += [(NAIVE_TITLES[name], scores) for name, scores in report["naive"].items()]
    parts += ["<h2>Scores</h2>", _table(CAPTION, SCORES, rows)]
    if (view := report["portfolio"]) is not None:
        held = view["models"] | {PORTFOLIOS[name]: naive for name, naive in view["naive"].items()}
        rank_ic, equity = (
            {name: scores[of] for name, scores in held.items()} for of in ("rank_ic", "equity")
        )
        times = np.array(view["equity_times"], dtype="datetime64[s]")
        parts += ["<h2>Portfolio</h2>", _table(PORTFOLIO_CAPTION.format(**view), PORTFOLIO, held.items())]
        parts += ["<div class=charts>", _drawn(_draw_lines, "Rank IC by bar ahead", ahead, rank_ic)]
        parts += [_drawn(_draw_lines, "Equity after costs", times, equity), "</div>"]
    parts += ["<h2>Calibration</h2><div class=charts>", _drawn(_draw_reliability, models)]
    parts += [_drawn(_draw_pit, models), "</div><h2>By horizon</h2><div class=charts>"]
    parts += [_drawn(_draw_coverage, models)]
    losses = {name: scores["by_horizon"]["crps_scaled"] for name, scores in rows}
    parts += [_drawn(_draw_lines, "CRPS, scaled, by bar ahead", ahead, losses), "</div>"]
    for title, chosen in (("Best", best_first[:SHOWN_WINDOWS]), ("Worst", best_first[::-1][:SHOWN_WINDOWS])):
        parts.append(f"<h2>{title} windows of {html.escape(run.names()[0])}</h2><div class=charts>")
        parts += [_drawn(_draw_window, run, window) for window in chosen]
        parts.append("</div>")
    page = Template(PAGE.read_text(encoding="utf-8"))
    path.write_text(page.substitute(content="\n".join(parts)), encoding="utf-8")


def _verdict_line(text: str) -> str:
    kind = "worse" if text.startswith("WORSE") else "better" if text.startswith("Better") else ""
    return f"<li class={kind!r}>{html.escape(text)}</li>"


def _table(caption: str, columns: Columns, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    head = "".join(f"<th scope=col>{title}</th>" for title in ("", *columns))
    body = ""
    for name, scores in rows:
        cells = "".join(f"<td>{_cell(of(scores))}</td>" for of in columns.values())
        body += f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>\n"
    return f"<div class=scroll><table><caption>{caption}</caption><tr>{head}</tr>\n{body}</table></div>"


def _cell(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def _percent(share: float | None, digits: int = 0) -> str | None:
    return None if share is None else f"{100 * share:.{digits}f}\u00a0%"


def _drawn(draw: Callable[..., None], *args: Any) -> str:
    """A chart as SVG text, without the XML declaration that only a separate file needs."""
    text = io.StringIO()
    # Equal reports give equal files (hashsalt). A dollar sign in a name starts no formula (parse_math).
    with rc_context({"svg.hashsalt": "kronos", "text.parse_math": False, "date.converter": "concise"}):
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


def _draw_lines(axes: Axes, title: str, at: Sequence[Any], lines: Mapping[str, Any]) -> None:
    """Lines by their names: models in colours, what they must beat faint."""
    colours = cycle(MODEL_COLOURS)
    for name, values in lines.items():
        look: Any = {"color": FAINT if name in STYLES else next(colours), "linestyle": STYLES.get(name, "-")}
        axes.plot(at, np.array(values, dtype=np.float64), label=name, **look)  # NaN for None
    axes.set(title=title)


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
    low, median, high = path_quantiles(next(run.store.closes(0, [window])), SHOWN_LEVELS)
    ahead = np.arange(options.horizon)
    axes.fill_between(ahead, low, high, color=MODEL_COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(ahead, median, color=MODEL_COLOURS[0], linewidth=1.2)
    axes.axvline(-0.5, color=FAINT, linewidth=0.9, linestyle="--")
    axes.set(title=f"{instrument.name}, {instrument.wall[lookback]}", xlabel="bars from the cut")
