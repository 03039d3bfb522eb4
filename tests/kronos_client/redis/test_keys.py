"""kronos_client/redis/lua/README.md has one line for each key in Redis, with its type."""

import re
from itertools import chain
from pathlib import Path

from kronos_client.client import ForecastClient
from kronos_client.contract import names
from kronos_client.contract.worker_status import FinetuneWorkerStatus
from kronos_client.feeds.stored import PARTS
from kronos_client.redis import queues
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.routing import announce
from kronos_client.redis.scripts import SCRIPTS
from kronos_model.bars.synthetic import candles
from tests.taking import begin_one, take_one
from worker.broker.deliveries import SCRIPTS as WORKER_SCRIPTS
from worker.broker.deliveries import Deliveries

ROOT = Path(__file__).parents[3]
LIST = r"\w*[cg]pu(?:\.finetune)?(?:\x06\x16[369])?"
PLACES = {"<queue>": LIST, "<list>": LIST, "<role>": "(?:forecast|finetune)"}
ROWS = re.findall(r"^\| `([^`]+)` \| (\w+) \|", (SCRIPTS / "README.md").read_text(), re.MULTILINE)
KINDS = {re.sub("<.*?>", lambda place: PLACES.get(place[0], ".+"), key): kind for key, kind in ROWS}
KEYS = queues.DELIVERY_KEYS["forecast"]


def rows_of(key: str) -> list[str]:
    return [pattern for pattern in KINDS if re.fullmatch(pattern, key)]


def keys_in_code() -> set[str]:
    """Keys, or how they begin, as scripts and modules name them."""
    scripts = [path.read_text() for folder in (SCRIPTS, WORKER_SCRIPTS) for path in folder.glob("*.lua")]
    packages = ("kronos_client", "worker", "api_stub", "kronos_cli")
    modules = [path.read_text() for name in packages for path in (ROOT / name).rglob("*.py")]
    in_scripts = chain(*(re.findall(r"'(kronos[:.][\w:.]+)", text) for text in scripts))
    in_modules = {*chain(*(re.findall(r'f"{KEY_PREFIX}([\w:]+)', text) for text in modules))}
    in_modules |= {f"feed_{part}:" for part in PARTS}
    in_modules.remove("feed_")  # before a part's name
    found = {*in_scripts, *(f"{names.KEY_PREFIX}{name}" for name in in_modules)}
    return found - {"kronos:nobody"}  # a channel


def test_it_has_each_key_that_scripts_and_modules_name():
    found = {*keys_in_code(), *chain(*queues.DELIVERY_KEYS.values())}
    found |= {f"{keys.unacked}{end}" for keys in queues.DELIVERY_KEYS.values() for end in ("_watch", "_room")}
    for key in found:
        examples = [key, f"{key}x", f"{key}cpu"]
        assert any(len(rows_of(example)) == 1 for example in examples), key
    used = {row for key in found for example in (key, f"{key}x", f"{key}cpu") for row in rows_of(example)}
    others = {row for row in KINDS if row not in used}
    assert others == {LIST, names.result_key(".+")}, "of kombu and Celery; any other row is no longer used"


def test_keys_that_jobs_leave_have_their_line_and_its_type(redis, redis_server):
    store, announced = JobStore(redis, 100, KEYS), {"node": "n", "device": "cpu", "queue": "cpu.finetune"}
    with ForecastClient(redis_server.url) as client:
        for job_id in "abcdef":
            client.submit(candles(1, 60).as_dict(), pred_len=2, job_id=job_id)
    taking = connect(redis_server.url, decode_responses=False)
    deliveries = Deliveries(taking, KEYS, timeout_s=60.0, max_bytes=10**6)
    taken = [take_one(deliveries, queues.list_keys("cpu")) for _ in "abcde"]
    tags = dict(zip("abcde", [one.tag for one in taken if one], strict=True))
    begin_one(store, "a", '{"status": "STARTED"}', tags["a"], 60.0)
    store.request_cancel("a")
    store.end([Ending("b", '{"status": "SUCCESS"}', tags["b"]), Ending("c", "", tags["c"], "entry")])
    deliveries.put_back(tags["d"], 1000.0)
    deliveries.move_to_large(tags["e"])
    deliveries.restore_overdue()
    announce(redis, FinetuneWorkerStatus.model_construct(**announced))
    keys = [key for key in redis.scan_iter() if not key.startswith("_kombu.")]
    assert {len(rows_of(key)) for key in keys} == {1}, [key for key in keys if len(rows_of(key)) != 1]
    assert {key: redis.type(key) for key in keys} == {key: KINDS[rows_of(key)[0]] for key in keys}
    assert {*KEYS, "cpu\x06\x163", "kronos:large:cpu\x06\x163", "kronos:delayed:cpu\x06\x163"} <= {*keys}
