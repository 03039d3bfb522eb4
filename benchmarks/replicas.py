"""What does KRONOS_REDIS_MIN_REPLICAS cost a job?

A Redis with one replica, both on this machine, so the way to the replica is short. Milliseconds of a
``submit``, and of storing an outcome, alone and 64 in one call; medians, both cases in turn.

    python -m benchmarks.replicas [--calls 300] [--rounds 3]
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from redis import Redis

from benchmarks.support.harness import Table, in_turn, medians, options
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.settings import ClientSettings
from kronos_model.bars.synthetic import candles

OUTCOME = '{"status": "SUCCESS"}'
AT_ONCE = 64
RESULT_TTL_S = 60


def median_ms(call: Callable[[int], object], num_calls: int) -> float:
    def ms(number: int) -> float:
        start = time.perf_counter()
        call(number)
        return 1e3 * (time.perf_counter() - start)

    return statistics.median(map(ms, range(num_calls)))


def measure(url: str, num_calls: int, min_replicas: int) -> list[float]:
    """Milliseconds of a submission, an outcome, and many outcomes in one call."""
    bars = pd.DataFrame(candles(1, 400).as_dict())
    settings = ClientSettings(redis_url=url, redis_min_replicas=min_replicas, max_queue_jobs=10**6)
    with ForecastClient(settings=settings) as client, connect(url, min_replicas=min_replicas) as redis:
        store = JobStore(redis, RESULT_TTL_S)

        def end(count: int, number: int) -> None:
            store.end([Ending(f"{min_replicas}-{count}-{number}-{job}", OUTCOME) for job in range(count)])

        submit = median_ms(lambda _: client.submit(bars, pred_len=24), num_calls)
        ended = [median_ms(partial(end, count), num_calls) for count in (1, AT_ONCE)]
        redis.flushdb()
        return [submit, *ended]


def password_of(redis: Redis) -> str:
    return str(redis.connection_pool.connection_kwargs["credential_provider"].get_credentials()[0])


def main() -> None:
    given = options(__doc__, calls=300, rounds=3)
    with TemporaryDirectory() as folder, LocalRedis() as primary, LocalRedis(data=Path(folder)) as replica:
        host, port = primary.address.split(":")
        with connect(replica.url) as redis, connect(primary.url) as main_redis:
            redis.config_set("masterauth", password_of(main_redis))
            redis.replicaof(host, port)
            while redis.info("replication")["master_link_status"] != "up":
                time.sleep(0.1)
        cases = {count: partial(measure, primary.url, given.calls, count) for count in (0, 1)}
        times = in_turn(cases, given.rounds)
    table = Table("replicas:>8", "submit ms:>9.2f", "outcome ms:>10.2f", f"{AT_ONCE} outcomes ms:>14.2f")
    for count, rows in times.items():
        table.row(count, *medians(rows))


if __name__ == "__main__":
    main()
