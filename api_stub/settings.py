"""Settings that only the HTTP API reads from the environment."""

from pydantic import Field, SecretStr

from kronos_client.settings import ServiceSettings, twice_a_message


class ApiSettings(ServiceSettings):
    """The settings of the HTTP API."""

    api_keys: SecretStr | None = None
    """keys, separated by commas or line ends; each request must send one; default: none. A key with scopes,
    such as `KEY:predict+train`, allows only those: `predict`, `train`, `promote`, `metrics`, `admin`"""
    api_wait_s: float = Field(60, ge=0)
    """seconds that a request waits for its forecast; then it gets the job's address"""
    api_max_body_bytes: int = Field(default_factory=twice_a_message, ge=1024)
    """Bytes of one request."""
    api_max_upload_bytes: int = Field(256 * 2**20, ge=1024)
    """bytes of one uploaded file of candles"""
    api_body_timeout_s: float = Field(30, gt=0)
    """Seconds for which a request's body may stop arriving; then the answer is 408."""
    api_body_bytes_per_s: int = Field(32_768, ge=1)
    """Bytes a second of a request's body; the answer is 408 once a slower one is too long behind."""
    api_requests_per_minute: int | None = Field(None, ge=1)
    """requests a minute of one key, over all API processes; more get 429; default: no limit"""
    api_mcp: bool = False
    """whether `/mcp` serves tools for agents, by the Model Context Protocol; needs the extra `mcp`"""
    webhook_secret: SecretStr | None = None
    """key that signs webhooks, 24 or more bytes in base64; default: none are sent"""
    webhook_networks: str | None = None
    """networks that webhooks may call in addition to public addresses, separated by commas, such as
    `10.0.0.0/8`"""
    api_cors_origins: str | None = None
    """origins whose pages may use the API, separated by commas, such as `https://example.org`"""

    @property
    def cors_origins(self) -> list[str]:
        """The origins in ``api_cors_origins``."""
        return (self.api_cors_origins or "").replace(",", " ").split()
