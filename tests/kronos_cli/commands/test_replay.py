"""``kronos replay`` of what is no manifest. Replays themselves are in tests/integration/test_feeds.py."""

import pytest
from click.testing import CliRunner

from kronos_cli.main import cli


@pytest.mark.parametrize("document", ["", "{}", '{"series": "AAA", "mean": {}}\n', "[]"])
def test_a_file_without_a_manifest_is_refused(document):
    done = CliRunner().invoke(cli, ["replay", "-"], input=document, prog_name="kronos")
    assert (done.exit_code, "no manifest" in done.output) == (2, True)
