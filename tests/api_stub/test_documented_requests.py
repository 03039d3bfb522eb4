"""The requests of docs/use/http.md, sent as its commands of curl send them."""

import re
import shlex

import pytest
from fastapi.testclient import TestClient

from tests.api_stub.conftest import ADDRESS, series
from tests.doc_blocks import ROOT, blocks_of, commands_of

COMMANDS = [
    command
    for block in blocks_of(ROOT / "docs" / "use" / "http.md")
    if block.reason is None and block.language == "bash"
    for command in commands_of(block)
]
TIMES = series(num_candles=99)["timestamps"]
CSV = "\n".join(["timestamps,open,high,low,close", *(f"{time},2,3,1,2" for time in TIMES)])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_curl_is_answered(http: TestClient, settings, command: str) -> None:
    settings.data_folder.mkdir(exist_ok=True)
    if "datasets?" not in command:
        (settings.data_folder / "BTC-USD.csv").write_text(CSV)
    words = shlex.split(command.removeprefix("curl "))
    headers, body, url = {}, b"", ""
    assert command.startswith("curl ")
    while words:
        match words.pop(0):
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case "-d":
                body = words.pop(0).encode()
            case "--data-binary":
                assert re.fullmatch(r"@[\w.-]+\.csv", words.pop(0))
                body = CSV.encode()
            case word:
                assert not word.startswith("-"), f"{word} is not known here"
                url = word
    assert url.startswith(ADDRESS)
    answer = http.post(url, content=body, headers=headers)
    assert answer.status_code in (201, 202), answer.text
