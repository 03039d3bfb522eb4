"""A report on candle files: what was read, what was dropped and why, and a fingerprint of the bars."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.sessions import common_spacing
from kronos_model.bars.columns import Instrument
from kronos_model.bars.files.faults import Findings
from kronos_model.bars.timestamps import write_times
from kronos_model.text import plural

SHOWN: Final = 5
"""Instruments and skipped files in a summary: a market has thousands."""
SHORT: Final = 20
"""Instruments and skipped files in the short form for messages."""
LONG_BREAK_S: Final = 4 * 86_400
"""Longer than a weekend with a holiday at its end."""


@dataclass(frozen=True)
class InstrumentReport:
    """The report on one instrument.

    Attributes:
        first, last: the times of its first and last bar, with offsets if the data has them.
        spacing_s: the most frequent distance between neighbours.
        num_gaps: longer distances within one day, without breaks that most days have.
        longest_break_s: the longest distance between neighbours, nights and weekends included.
        num_sorted: rows that came after a later one and were sorted.
        num_filled: bars without prices, or that were not there, which have the close before them.
    """

    name: str
    files: list[str]
    num_bars: int
    first: str | None
    last: str | None
    spacing_s: int | None
    num_gaps: int
    longest_break_s: int | None
    num_sorted: int
    num_filled: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class DataReport:
    """The report on all files.

    Attributes:
        instruments: sorted by name.
        dropped: dropped rows, by reason, including rows that belong to no instrument.
        bad_rows: what is wrong with the first of these, as messages.
        warnings: candles whose open or close lies outside low to high, one message a file.
        skipped: unusable files of folders, and why.
        fingerprint: ``sha256:…`` of names, times and bars. It does not depend on file types and folders.
    """

    instruments: tuple[InstrumentReport, ...]
    dropped: Mapping[str, int]
    bad_rows: Sequence[str]
    warnings: Sequence[str]
    skipped: Mapping[str, str]
    fingerprint: str

    @property
    def num_bars(self) -> int:
        return sum(each.num_bars for each in self.instruments)

    @property
    def num_gaps(self) -> int:
        return sum(each.num_gaps for each in self.instruments)

    @property
    def num_filled(self) -> int:
        return sum(each.num_filled for each in self.instruments)

    @property
    def remarks(self) -> list[str]:
        """What a reader of results must know about the candles, a sentence each."""
        found = []
        if self.num_gaps:
            found.append(
                f"{plural(self.num_gaps, 'gap')} within days: bars around them are read as neighbours"
            )
        if self.num_filled:
            found.append(
                f"Without prices or not there, with the close before: {plural(self.num_filled, 'bar')}"
            )
        if self.dropped:
            found.append(f"Rows dropped: {describe(self.dropped)}")
        return [*found, *self.warnings[:SHOWN]]

    def as_dict(self) -> dict[str, Any]:
        """The whole report, JSON-compatible."""
        return {
            "num_instruments": len(self.instruments),
            "num_bars": self.num_bars,
            "num_gaps": self.num_gaps,
            "num_sorted": sum(each.num_sorted for each in self.instruments),
            "num_filled": self.num_filled,
            "num_skipped": len(self.skipped),
            "dropped": dict(self.dropped),
            "bad_rows": list(self.bad_rows),
            "warnings": list(self.warnings[:SHORT]),
            "fingerprint": self.fingerprint,
            "skipped": dict(self.skipped),
            "instruments": [asdict(each) for each in self.instruments],
        }

    def short(self) -> dict[str, Any]:
        """As ``as_dict``, with the first instruments and skipped files only, and without file lists."""
        whole = self.as_dict()
        instruments = whole["instruments"][:SHORT]
        for each in instruments:
            del each["files"]
        return whole | {"skipped": dict(islice(self.skipped.items(), SHORT)), "instruments": instruments}

    def summary(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.num_bars:,} bars of {plural(len(self.instruments), 'instrument')}",
            *self.remarks,
            *(f"  {text}" for text in self.bad_rows[:SHOWN]),
        ]
        for each in self.instruments[:SHOWN]:
            span = f", {each.first} to {each.last}" if each.first else ""
            spacing = f", every {each.spacing_s} s" if each.spacing_s else ""
            lines.append(f"  {each.name}: {plural(each.num_bars, 'bar')}{span}{spacing}{_break_of([each])}")
        if rest := self.instruments[SHOWN:]:
            lines.append(f"  and {len(rest):,} more{_break_of(rest)}")
        if self.skipped:
            lines.append(f"{plural(len(self.skipped), 'file')} skipped:")
            lines += [f"  {file}: {reason}" for file, reason in islice(self.skipped.items(), SHOWN)]
        if len(self.skipped) > SHOWN:
            lines.append(f"  and {len(self.skipped) - SHOWN:,} more")
        return "\n".join(lines)


def _break_of(reports: Iterable[InstrumentReport]) -> str:
    """The longest break that is longer than a long weekend and than the usual spacing, in words."""
    breaks_s = [(each.longest_break_s or 0, each.spacing_s or 0) for each in reports]
    longest_s = max((long for long, spacing in breaks_s if long > max(LONG_BREAK_S, spacing)), default=0)
    return f", longest break {longest_s / 86_400:.0f} d" if longest_s else ""


def describe(dropped: Mapping[str, int]) -> str:
    """Counts by reason in words, the most frequent first."""
    most_first = Counter(dropped).most_common()
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in most_first)


def report_instrument(
    instrument: Instrument, files: Iterable[str], num_sorted: int, num_filled: int, dropped: Mapping[str, int]
) -> InstrumentReport:
    """The report on an instrument, which may have no bars."""
    wall, instants = instrument.wall, instrument.instants.astype("datetime64[s]").astype(np.int64)
    spacing_s, num_gaps, longest_break_s = None, 0, None
    if len(instants) > 1:
        longest_break_s = int(np.diff(instants).max())
        spacing_s = common_spacing(instants)
        num_gaps = _num_gaps(wall, np.diff(instants) > spacing_s)
    ends = [0, -1] if len(instants) else []
    texts = write_times(wall[ends], instrument.instants[ends], instrument.is_aware)
    first, last = texts or (None, None)
    totals = (len(instants), first, last, spacing_s, num_gaps, longest_break_s, num_sorted, num_filled)
    return InstrumentReport(instrument.name, list(files), *totals, dict(dropped))


def _num_gaps(wall: NDArray[np.datetime64], is_longer: NDArray[np.bool_]) -> int:
    """Distances above the spacing within one day, without those that at least half of the days share."""
    days = wall.astype("datetime64[D]")
    is_gap = is_longer & (days[1:] == days[:-1])
    clocks = (wall.astype("datetime64[s]") - days).astype(np.int64)  # seconds since midnight
    ends = np.stack([clocks[:-1][is_gap], clocks[1:][is_gap]], axis=1)
    _, counts = np.unique(ends, axis=0, return_counts=True)
    return int(counts[(counts < 2) | (2 * counts < len(np.unique(days)))].sum())


def report_data(
    instruments: Iterable[Instrument],
    reports: Iterable[InstrumentReport],
    found: Findings,
    skipped: Mapping[str, str],
) -> DataReport:
    """The report on all instruments."""
    reports = tuple(reports)
    dropped = Counter(found.of_none)
    for each in reports:
        dropped.update(each.dropped)
    counts = dict(sorted(dropped.items()))
    return DataReport(
        reports, counts, found.bad_rows, found.warnings, dict(skipped), fingerprint(instruments)
    )


def fingerprint(instruments: Iterable[Instrument]) -> str:
    """``sha256:…`` over names, times and float32 bars, in the order of the names."""
    digest = sha256()
    for each in sorted(instruments, key=lambda instrument: instrument.name):
        name = each.name.encode("utf-8", "surrogatepass")
        head = np.array([len(name), len(each.bars), each.is_aware], dtype="<i8")
        digest.update(head.tobytes() + name)
        for times in (each.wall, each.instants):
            seconds = np.ascontiguousarray(times, dtype="datetime64[s]").view(np.int64)
            digest.update(seconds.astype("<i8", copy=False).data)
        digest.update(np.ascontiguousarray(each.bars, dtype="<f4").reshape(-1).data)
    return f"sha256:{digest.hexdigest()}"
