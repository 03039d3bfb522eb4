"""Messages about jobs, files and models, in the words of the command line."""

import re
from typing import Final


def _with_option(match: "re.Match[str]") -> str:
    how, _, option = match[1].partition(" ")
    return f"a {how} --{option} than"


def _conflict(match: "re.Match[str]") -> str:
    option, has, given = match.groups()
    if option in ("closed_only", "allow_fallback"):
        has, given = given, has  # the command has the opposite of these
    own = {"events": "event", "closed_only": "open_bars", "allow_fallback": "no_fallback"}
    option = own.get(option, option).replace("_", "-").replace("sample-count", "samples")
    remedy = "give the same, or remove the feed with `kronos feed delete`"
    return f"has --{option} {has}, not {given}: {remedy}"


_OPTIONS: Final = {
    r"has (\w+)=(.+), not (.+): open it without options, or delete it first": _conflict,
    r"create one with events=\[(.+)\]$": r"create one with --event \1",
    r"create it by giving pred_len and other options": "make it with `kronos feed create`",
    r"\bevent must be one of the feed's": "--rank must be one of the feed's",
    r"give (the future times|them,) or a longer lookback": "use a longer file, or a longer --lookback",
    r"\bseries(\.0)?\.": "",
    r"\bdata\.instruments\b": "--inline",
    r"\b(sampling\.)?sample_count\b": "--samples",
    r"\boutput\.events\.\d+ asks": "--event asks",
    r"ask for more bars": "ask for more with --pred-len",
    r"\bor fresh=True\b": "or --fresh",
    r"\brepeat the backtest with more$": "repeat the backtest with more --windows",
    r"\ba (smaller stride|shorter lookback) than\b": _with_option,
    r"^lookback: ": "--lookback: ",
    r'\bmissing "ffill"': "--missing ffill",
    r"\b(?:sampling|output)\.(\w+)": lambda match: f"--{match[1].replace('_', '-')}",
    r"\b(pred_len|top_k|top_p)\b": lambda match: f"--{match[1].replace('_', '-')}",
    r"\bdeadline_s\b": "--deadline",
    r"\bor the timezone of\b": "or --timezone, the zone of",
    r"\breplace\(\)": "kronos feed append --replace",
    r"\bgive timezone,": "give --timezone,",
    r"(?<!column )\btimestamps\b(?!=|, (timestamp|open)\b)": "times",  # the name of a column stays
}


def in_own_words(text: str) -> str:
    """The text with options in place of the fields of a job."""
    for pattern, words in _OPTIONS.items():
        text = re.sub(pattern, words, text)  # type: ignore[call-overload]
    return text
