"""KronosPredictor: forecasts from DataFrames, with the signature of the reference implementation."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from kronos_model.bars.columns import COLUMNS, column_error, time_features, to_bars
from kronos_model.devices.resolution import move_to_device, resolve_device
from kronos_model.engine.build import build_engine
from kronos_model.engine.choice import EngineChoice
from kronos_model.engine.generation import ContextPolicy, Generation, SamplingParams, SeriesRequest
from kronos_model.errors import Cancelled, InputError, TimestampError
from kronos_model.forecast import Forecast
from kronos_model.model import Kronos
from kronos_model.model_pair import DEFAULT_MAX_CONTEXT, default_max_context
from kronos_model.seeds import MAX_SEED, derive_series_seed
from kronos_model.tokenizer import KronosTokenizer

Timestamps = pd.Series | pd.DatetimeIndex | Sequence[Any]


class KronosPredictor:
    """A model and its tokenizer on one device, ready to forecast. Threads may share it, in turn.

    Model and tokenizer are float32. The engine uses the weights as they are now: after a change or a move of
    them, make a new predictor.

    Args:
        model, tokenizer: loaded checkpoints that fit each other; they are moved and put in eval mode.
        device: as in ``resolve_device``. If it is not used, ``device_warning`` has the reason.
        max_context: most bars that the model sees; by default 512, as in the reference implementation, or
            fewer if the bundled or finetuned model was trained with fewer. Kronos-mini sees 2048.
        clip: scaled values are clipped to ±clip.
        max_slots: paths that run together; more run in rounds.
        engine: what computes the steps on a CPU: ``"torch"``, else our native kernels if it can use them.
            They are compiled when they are first used on a machine, which takes about half a minute.
    """

    def __init__(
        self,
        model: Kronos,
        tokenizer: KronosTokenizer,
        device: str | torch.device | None = "auto",
        max_context: int | None = None,
        clip: float = 5,
        *,
        max_slots: int = 64,
        engine: EngineChoice = "auto",
    ) -> None:
        for module in (model, tokenizer):
            dtypes = {parameter.dtype for parameter in module.parameters()} - {torch.float32}
            if dtypes:
                raise InputError(
                    f"{type(module).__name__} holds {dtypes.pop()} weights: convert it with .float() first"
                )
        if max_context is None:
            trained = (
                DEFAULT_MAX_CONTEXT if model.checkpoint is None else default_max_context(model.checkpoint.id)
            )
            max_context = min(DEFAULT_MAX_CONTEXT, trained)
        requested = str(device) if isinstance(device, torch.device) else device
        resolved, warning = resolve_device(requested)
        model, resolved, placement_warning = move_to_device(model, resolved)
        tokenizer, resolved, tokenizer_warning = move_to_device(tokenizer, resolved)
        model = model.to(resolved)  # if only the tokenizer did not fit, both fall back
        self.model, self.tokenizer = model.eval(), tokenizer.eval()
        self.device = resolved
        self.device_warning = warning or placement_warning or tokenizer_warning
        self.max_context = max_context
        self._engine = build_engine(
            self.model, self.tokenizer, max_context=max_context, clip=clip, max_slots=max_slots, kind=engine
        )
        self._engine_lock = threading.Lock()
        self._engine_thread = ThreadPoolExecutor(1, thread_name_prefix="kronos-predictor")

    def predict(
        self,
        df: pd.DataFrame,
        x_timestamp: Timestamps,
        y_timestamp: Timestamps,
        pred_len: int,
        T: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        sample_count: int = 1,
        seed: int | None = None,
        verbose: bool = False,
    ) -> pd.DataFrame:
        """The mean forecast of one series.

        Args:
            df: the lookback, one bar a row: columns open, high, low, close, optionally volume and amount.
            x_timestamp, y_timestamp: wall-clock times of the lookback's bars and of the ``pred_len`` future
                bars.
            T, top_k, top_p, sample_count: temperature, filters (0 and 1.0 filter nothing), number of paths.
            seed: by default drawn from torch's default generator, so ``torch.manual_seed`` fixes it.
            verbose: show a progress bar.

        Returns:
            ``pred_len`` rows of the six columns, indexed by ``y_timestamp``; ``attrs["seed"]`` is the seed.

        Raises:
            InputError: candles, timestamps, horizon or sampling parameters cannot be used.
        """
        return self.predict_batch(
            [df], [x_timestamp], [y_timestamp], pred_len, T, top_k, top_p, sample_count, seed, verbose
        )[0]

    def predict_batch(
        self,
        df_list: Sequence[pd.DataFrame],
        x_timestamp_list: Sequence[Timestamps],
        y_timestamp_list: Sequence[Timestamps],
        pred_len: int | Sequence[int],
        T: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        sample_count: int = 1,
        seed: int | None = None,
        verbose: bool = False,
    ) -> list[pd.DataFrame]:
        """Mean forecasts of several series. Lookbacks may differ in length; ``pred_len`` may be a list.

        Series 0 uses ``seed``, series i a seed derived from (seed, i). Each forecast equals that of the
        series alone with its own seed. The rest is as in ``predict``.
        """
        series = (df_list, x_timestamp_list, y_timestamp_list, pred_len)
        forecasts = self.forecast_batch(*series, T, top_k, top_p, sample_count, seed, verbose=verbose)
        frames = []
        for forecast, y_timestamp in zip(forecasts, y_timestamp_list, strict=True):
            frame = pd.DataFrame(forecast.mean, columns=list(COLUMNS), index=pd.Index(y_timestamp))
            frame.attrs["seed"] = forecast.seed
            frames.append(frame)
        return frames

    def forecast_batch(
        self,
        df_list: Sequence[pd.DataFrame],
        x_timestamp_list: Sequence[Timestamps],
        y_timestamp_list: Sequence[Timestamps],
        pred_len: int | Sequence[int],
        T: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        sample_count: int = 1,
        seed: int | None = None,
        *,
        repair: bool = False,
        context_policy: ContextPolicy = "exact",
        verbose: bool = False,
    ) -> list[Forecast]:
        """As ``predict_batch``, with every path, quantiles and the seed of each series.

        ``repair`` makes each path's bars possible ones (high at least open and close, …). ``context_policy``
        applies once the context is full: ``"exact"``, or ``"rolling"``, which is an approximation.
        """
        if isinstance(pred_len, int | np.integer):
            horizons = [int(pred_len)] * len(df_list)
        else:
            horizons = list(pred_len)
        if len({len(df_list), len(x_timestamp_list), len(y_timestamp_list), len(horizons)}) != 1:
            raise InputError("df_list, x_timestamp_list, y_timestamp_list and pred_len differ in length")
        if seed is None:
            seed = int(torch.randint(2**63 - 1, ()).item())
        elif not 0 <= seed <= MAX_SEED:
            raise InputError(f"seed must be between 0 and 2**63 − 1, not {seed}", field="seed")
        requests = [
            SeriesRequest(
                bars=_bars(df),
                stamps=_stamps(x_timestamp, len(df), "x_timestamp"),
                future_stamps=_stamps(y_timestamp, horizon, "y_timestamp"),
                sampling=SamplingParams(T, top_k, top_p, sample_count, derive_series_seed(seed, index)),
                context_policy=context_policy,
                job="predict",  # they do not compete with each other
            )
            for index, (df, x_timestamp, y_timestamp, horizon) in enumerate(
                zip(df_list, x_timestamp_list, y_timestamp_list, horizons, strict=True)
            )
        ]
        num_bars = sum(request.horizon * request.sampling.sample_count for request in requests)
        with self._engine_lock, tqdm(total=num_bars, unit="bar", disable=not verbose) as progress:
            ended = self._run(requests, progress.update)
        forecasts = [Forecast(generation.paths, generation.request.sampling.seed) for generation in ended]
        return [forecast.repaired() for forecast in forecasts] if repair else forecasts

    def _run(self, requests: list[SeriesRequest], on_bars: Callable[[int], object]) -> list[Generation]:
        """Run the engine; on CUDA always on the same thread, as ``decoding/graphs.py`` requires."""
        if self.device.type != "cuda":
            return self._engine.run(requests, on_bars)
        is_over = threading.Event()

        def on_step(num_bars: int) -> None:
            if is_over.is_set():
                raise Cancelled("the caller was interrupted")
            on_bars(num_bars)

        try:
            return self._engine_thread.submit(self._engine.run, requests, on_step).result()
        finally:
            is_over.set()


def _bars(df: pd.DataFrame) -> NDArray[np.float32]:
    columns = {}
    for name in [name for name in COLUMNS if name in df.columns]:
        try:
            values = columns[name] = df[name].to_numpy(dtype=np.float64)
        except (TypeError, ValueError):
            raise column_error("BAD_TYPE", name, " holds something that is not a number") from None
        if not np.isfinite(values).all():
            row = int(np.isfinite(values).argmin())
            text = f" holds {values[row]} in row {row}: drop or fill such rows first"
            raise column_error("NOT_FINITE", name, text, row=row)
    return to_bars(columns)


def _stamps(timestamps: Timestamps, expected: int, field: str) -> NDArray[np.int64]:
    """Time features (T, 5) of the wall clock as written, in any zone."""
    if len(timestamps) != expected:
        text = f"{field} has {len(timestamps)} entries, but {expected} are needed"
        raise TimestampError(text, code="LENGTH_MISMATCH", field=field)
    index = pd.DatetimeIndex(pd.Index(timestamps))
    if index.hasnans:
        row = int(np.flatnonzero(index.isna())[0])
        text = f"{field} has no time in row {row}"
        raise TimestampError(text, code="BAD_TIMESTAMP", field=field, details={"row": row})
    return time_features(index.tz_localize(None).to_numpy(dtype="datetime64[s]"))
