"""Every setting of every wing, as one class."""

from api_stub.settings import ApiSettings
from kronos_cli.settings import CliSettings


class AllSettings(CliSettings, ApiSettings):
    """What the pages on settings, the compose file and the manifests must agree with."""
