"""Compressed requests and answers."""

import gzip
import json
import zlib

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from api_stub.middleware.encodings import PIECE_BYTES, ZstdCompressor, ZstdDecompressor, accepted_encodings
from kronos_client.contract.schemas import example
from kronos_model.bars.files.content import FREE_BYTES, MAX_RATIO
from tests.api_stub.conftest import ADDRESS, series

LIMIT = 2 * PIECE_BYTES


def zstd(data: bytes) -> bytes:
    return ZstdCompressor().compress(data, ZstdCompressor.FLUSH_FRAME)


COMPRESS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "zstd": zstd, "ZSTD": zstd}


def post(http, content: bytes, encoding: str, path: str = "/v1/predict/single"):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return http.post(path, content=content, headers=headers)


def in_chunks(data: bytes, size: int):
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("num_spaces", [0, PIECE_BYTES + 17])
def test_a_compressed_body_is_read_as_a_plain_one(http, jobs, encoding, num_spaces):
    body = json.dumps(series()).encode() + b" " * num_spaces
    answer = post(http, COMPRESS[encoding](body), encoding)
    assert answer.status_code == 202, answer.text
    assert jobs.sent()[0]["series"][0]["id"] == "AAPL"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_may_come_in_small_parts_and_several_frames(http, encoding):
    text = json.dumps(series()).encode()
    content = b"".join(COMPRESS[encoding](part) for part in (text[:100], text[100:], b""))
    assert post(http, in_chunks(content, 7), encoding).status_code == 202


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_the_limit_of_a_body_counts_what_it_decodes_to(settings, encoding):
    bomb = COMPRESS[encoding](b" " * (16 * PIECE_BYTES))
    assert len(bomb) < PIECE_BYTES
    small = settings.model_copy(update={"api_max_body_bytes": LIMIT})
    with TestClient(create_app(small), base_url=ADDRESS) as http:
        answer = post(http, bomb, encoding)
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_that_decodes_to_too_many_bytes_for_its_size_is_refused(http, settings, encoding):
    bomb = COMPRESS[encoding](b"\n" * (FREE_BYTES + 1))
    headers = {"Content-Type": "text/csv", "Content-Encoding": encoding}
    answer = http.post("/v1/datasets?name=a.csv", content=bomb, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")
    assert f"more than {MAX_RATIO} times its size" in answer.json()["detail"]
    assert not list(settings.data_folder.rglob("*"))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize(
    "head", [gzip.compress(b"timestamps", mtime=0), b"PAR1 and so on"], ids=["gzip", "parquet"]
)
def test_a_packed_file_is_not_packed_again(http, encoding, head):
    content = b"".join(COMPRESS[encoding](part) for part in (head[:1], head[1:]))
    headers = {"Content-Type": "application/octet-stream", "Content-Encoding": encoding}
    answer = http.post("/v1/candles?name=a.csv.gz", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert "send it without Content-Encoding" in answer.json()["detail"]


@pytest.mark.parametrize(("window_log", "status"), [(20, 202), (23, 202), (27, 400)])
def test_a_zstd_frame_that_needs_much_memory_is_refused(http, window_log, status):
    text = json.dumps(series()).encode()
    # RFC 8878: magic number, frame header of a window alone, and one raw block, which is the last.
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3])
    block = (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert post(http, header + block, "zstd").status_code == status


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data + b"more", lambda data: b"plain"]
)
def test_a_damaged_body_is_refused(http, jobs, encoding, damage):
    answer = post(http, damage(COMPRESS[encoding](json.dumps(series()).encode())), encoding)
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_REQUEST")
    assert jobs.sent() == []


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "é"])
def test_other_encodings_are_refused_with_those_that_are_read(http, encoding):
    content = zlib.compress(json.dumps(series()).encode())
    answer = post(http, content, encoding.encode("latin-1"))
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert answer.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("br", None),
        ("", None),
    ],
)
def test_a_long_answer_is_compressed_as_the_client_accepts(http, jobs, accepted, encoding):
    accepted_job = http.post("/v1/forecasts", json=example("forecast-job")).json()
    jobs.finish(accepted_job["id"], example("forecast-result"))
    plain = http.get(accepted_job["url"], headers={"Accept-Encoding": "identity"})
    with http.stream("GET", accepted_job["url"], headers={"Accept-Encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding") == encoding
    assert "Accept-Encoding" in answer.headers["vary"]
    decode = {"gzip": gzip.decompress, "zstd": ZstdDecompressor().decompress, None: bytes}[encoding]
    assert decode(raw) == plain.content
    assert int(answer.headers["content-length"]) == len(raw)


def test_a_streamed_file_is_compressed_whole(http):
    plain = http.get("/sample.csv", headers={"Accept-Encoding": "identity"}).content
    with http.stream("GET", "/sample.csv", headers={"Accept-Encoding": "zstd"}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "zstd"
    assert ZstdDecompressor().decompress(raw) == plain


def test_events_and_short_answers_are_not_compressed(http, jobs):
    job = http.post("/v1/forecasts", json=example("forecast-job")).json()
    jobs.finish(job["id"], example("forecast-result"))
    for path in (f"{job['url']}/events", "/v1/healthz"):
        assert "content-encoding" not in http.get(path, headers={"Accept-Encoding": "zstd, gzip"}).headers


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", {""}),
        ("gzip;q=1.0, ZSTD ;q=0.5, br;q=0, x;q=0.000", {"gzip", "zstd"}),
        ("gzip; q=0", set()),
    ],
)
def test_encodings_of_weight_0_are_not_accepted(header, expected):
    assert accepted_encodings(header) == expected
