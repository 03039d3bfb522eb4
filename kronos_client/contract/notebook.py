"""Results as notebooks show them: a small table, and the fan of the close. Needs no package."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kronos_client.contract.results import ForecastResult, SeriesForecast

WIDTH: Final = 480
HEIGHT: Final = 140
MAX_SERIES: Final = 5
COLOUR: Final = "#3d5a98"


def result_html(result: "ForecastResult") -> str:
    """The model, the warnings, and the first series."""
    head = f"<p><b>{escape(result.model.id)}</b> on {escape(result.device)}</p>"
    rest = len(result.series) - MAX_SERIES
    more = f"<p>… and {rest} more series</p>" if rest > 0 else ""
    return head + _listed(result.warnings) + "".join(map(series_html, result.series[:MAX_SERIES])) + more


def series_html(series: "SeriesForecast") -> str:
    """The close of the first and last bars with its quantiles, and the fan of all bars."""
    levels = sorted(series.quantiles, key=float)
    columns = [series.mean["close"], *(series.quantiles[level]["close"] for level in levels)]
    titles = ["", "mean close", *(f"{100 * float(level):g} %" for level in levels)]
    rows = "".join(
        _row("td", [series.timestamps[bar], *(f"{column[bar]:.6g}" for column in columns)])
        for bar in sorted({*range(len(series.timestamps))[:2], *range(len(series.timestamps))[-2:]})
    )
    head = f"<p>{escape(series.id)}: {len(series.timestamps)} bars, from {series.lookback} bars</p>"
    return f"{head}{_listed(series.warnings)}<table>{_row('th', titles)}{rows}</table>{_fan(columns)}"


def _fan(columns: Sequence[Sequence[float]]) -> str:
    """The mean, which comes first, over the bands between its quantiles, as SVG."""
    low, high = min(map(min, columns)), max(map(max, columns))
    steps, scale = max(1, len(columns[0]) - 1), (high - low) or 1

    places = [
        [f"{WIDTH * bar / steps:.1f},{HEIGHT * (high - value) / scale:.1f}" for bar, value in enumerate(each)]
        for each in columns
    ]
    mean, *quantiles = places
    bands = "".join(
        f'<polygon points="{" ".join([*lower, *reversed(upper)])}" fill="{COLOUR}" fill-opacity=".2"/>'
        for lower, upper in list(zip(quantiles, reversed(quantiles), strict=True))[: len(quantiles) // 2]
    )
    line = f'<polyline points="{" ".join(mean)}" fill="none" stroke="{COLOUR}" stroke-width="2"/>'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{bands}{line}</svg>'


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _listed(texts: Sequence[str]) -> str:
    return "".join(f"<p>Warning: {escape(text)}</p>" for text in texts)
