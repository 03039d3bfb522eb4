"""What the HTTP API reads of the environment, on top of what clients and workers read."""

from functools import cache

from pydantic import Field, SecretStr

from kronos_client.settings import ServiceSettings


class ApiSettings(ServiceSettings):
    """The settings of the HTTP API."""

    api_keys: SecretStr | None = Field(
        None, description="keys of which each request names one, with commas or line ends between them"
    )
    api_wait_s: float = Field(
        60, ge=0, description="how long a request waits for its forecast before it is told where that will be"
    )
    api_max_body_bytes: int = Field(16 * 2**20, ge=1024, description="size of one request")
    api_max_upload_bytes: int = Field(256 * 2**20, ge=1024, description="size of one file of candles")
    api_cors_origins: str | None = Field(
        None,
        description="other sites whose pages may use the API, as https://example.org, with commas between",
    )


@cache
def get_settings() -> ApiSettings:
    """This API process's settings, read on first use."""
    return ApiSettings.load()
