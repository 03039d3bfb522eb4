"""A Redis Cluster is refused with a code, wherever one meets it first."""

import subprocess
import sys

import pandas as pd
import pytest
from redis import Redis

from kronos_cli.checks.redis_server import redis_findings
from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.synthetic import candles
from kronos_model.processes.children import own_environment


class ClusterNode(LocalRedis):
    def _configuration(self) -> str:
        return (
            super()._configuration() + f"cluster-enabled yes\ncluster-config-file nodes-{self._port}.conf\n"
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    """A cluster of one node, which has all slots."""
    with ClusterNode(data=tmp_path_factory.mktemp("cluster")) as server:
        with Redis.from_url(server.url) as redis:
            redis.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        yield server


def test_a_client_is_told(node: LocalRedis):
    with ForecastClient(node.url) as client, pytest.raises(JobError, match="cluster mode disabled") as caught:
        client.submit(pd.DataFrame(candles(1, 60).as_dict()), pred_len=2)
    assert caught.value.code == ErrorCode.REDIS_CLUSTER


def test_kronos_check_fails(node: LocalRedis):
    (finding,) = redis_findings(CliSettings(redis_url=node.url))
    assert (finding.level, finding.check) == ("failed", "redis")
    assert "cluster" in finding.message
    assert finding.remedy


@pytest.mark.parametrize("command", ["worker", "api"])
def test_worker_and_api_do_not_start(node: LocalRedis, command: str):
    arguments = [sys.executable, "-m", "kronos_cli", command, *(["--port", "0"] if command == "api" else [])]
    environment = own_environment({"KRONOS_REDIS_URL": node.url, "KRONOS_DEVICE": "cpu"})
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "REDIS_CLUSTER" in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
