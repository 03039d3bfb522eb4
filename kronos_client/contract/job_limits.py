"""The limits of a job's size, as a worker's settings give them. Imports no NumPy."""

from pydantic import BaseModel, ConfigDict, PositiveInt


class Limits(BaseModel):
    """What a worker accepts. ``max_pred_len`` comes from its model, the others from settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_series: PositiveInt = 64
    max_bars: PositiveInt = 8192
    max_pred_len: PositiveInt = 512
    max_sample_count: PositiveInt = 256
    max_paths: PositiveInt = 4096
    max_message_bytes: PositiveInt = 8 * 2**20
    max_result_bytes: PositiveInt = 16 * 2**20
    max_inline_bars: PositiveInt = 100_000
