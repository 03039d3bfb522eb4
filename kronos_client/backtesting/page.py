"""report.html: the verdict, scores and charts of a backtest in one file that loads nothing."""

import html
import io
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kronos_model.bars.columns import CLOSE
from kronos_model.evaluation.naive import NAIVE_TITLES
from kronos_model.evaluation.scores import INTERVALS
from kronos_model.forecast import path_quantiles

if TYPE_CHECKING:
    from kronos_client.backtesting.run import BacktestRun

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
        reasons = "; ".join(f"{code}: {one['message']}" for code, one in report["left_out"]["errors"].items())
        parts.append(f"<p class=worse>{left_out} windows are left out. {html.escape(reasons)}</p>")
    if files := report["left_out"]["files"]:
        reasons = "; ".join(f"{file}: {why}" for file, why in files.items())
        parts.append(f"<p class=worse>{len(files)} files cannot be used. {html.escape(reasons)}</p>")
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
    for name, one in forecasters.items():
        losses = np.array(one["by_horizon"]["crps_scaled"], dtype=np.float64)  # NaN for None
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
