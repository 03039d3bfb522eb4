"""``kronos replay`` of what is no manifest, and of a feed. Others: tests/integration/test_feeds.py."""

from contextlib import nullcontext

import pytest
from click.testing import CliRunner, Result

from kronos_cli.main import cli
from kronos_client.testing import FakeForecastClient
from tests.kronos_client.feeds.test_scores import bars


def replayed(document: str) -> Result:
    return CliRunner().invoke(cli, ["replay", "-"], input=document, prog_name="kronos")


@pytest.mark.parametrize("document", ["", "{}", '{"series": "AAA", "mean": {}}\n', "[]"])
def test_a_file_without_a_manifest_is_refused(document):
    done = replayed(document)
    assert (done.exit_code, "no manifest" in done.output) == (2, True)


@pytest.mark.parametrize("calibration", [None, "adaptive"])
def test_all_forecasts_that_wait_for_their_bars_are_computed_again(monkeypatch, calibration):
    """Also those that read bars before the window, with the numbers that were shown."""
    fake = FakeForecastClient()
    monkeypatch.setattr("kronos_cli.commands.replay.ForecastClient", lambda **_: nullcontext(fake))
    options = {"pred_len": 4, "sample_count": 30, "max_bars": 16, "quantiles": [0.1, 0.9]}
    with fake.feed("f", **options, calibration=calibration) as feed:
        for last in (16, 31, 32, 33):
            feed.append(bars("s1", last))
        found = feed.series("s1")
        assert len(found.bars["close"]) == 16
        manifests = [one.manifest for one in (*found.past, found.newest.forecast)]
        assert len({one.widened_by for one in manifests}) == (3 if calibration else 1)
        done = replayed(found.model_dump_json())
        lines = [f"s1, {one.bars.last}: equal" for one in manifests]
        assert (done.exit_code, sorted(done.output.splitlines())) == (0, sorted(lines))
        assert len({*lines}) == 3
        if calibration:
            other = manifests[0].model_copy(update={"widened_by": manifests[1].widened_by})
            assert replayed(other.model_dump_json()).exit_code == 1


def test_a_file_that_is_not_there_is_named():
    done = CliRunner().invoke(cli, ["replay", "nosuch.json"], prog_name="kronos")
    assert (done.exit_code, "'nosuch.json' does not exist" in done.output) == (2, True)
