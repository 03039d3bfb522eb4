"""Checkpoints from the hub. A server of this test on the loopback interface stands in for the hub."""

import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from kronos_model.errors import CheckpointError, CheckpointMissing, CheckpointUnreachable
from kronos_model.tokenizer import KronosTokenizer
from tests.ports import free_port

TOKENIZER = Path(__file__).parents[2] / "data" / "parity" / "a" / "tokenizer"
REPO = "someone/tokenizer"
OLD, NEW = "a" * 40, "b" * 40


@dataclass
class FakeHub:
    """Files by commit, the commits of branches, and the answers to requests."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.requests.append(path)
        repo, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if repo in self.refusals:
            status, code = self.refusals[repo]
            return status, {"X-Error-Code": code} if code else {}, b""
        if repo != REPO:
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if name not in self.commits[commit]:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = self.commits[commit][name]
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}, content


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {name: (TOKENIZER / name).read_bytes() for name in ("config.json", "model.safetensors")}
    fake = FakeHub(
        commits={OLD: files, NEW: files | {"README.md": b"newer"}}, branches={"main": NEW, "v1": OLD}
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, content = fake.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(
            target=functools.partial(server.serve_forever, poll_interval=0.02), daemon=True
        ).start()
        use_endpoint(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield fake
        server.shutdown()


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    # The library reads the environment only when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template[template.index("/{repo_id}") :]
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    huggingface_hub.close_session()


def closed_port() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    return functools.partial(KronosTokenizer.from_pretrained, cache_dir=tmp_path / "cache")


def test_downloads_once_and_needs_no_hub_for_a_pinned_commit(
    hub: FakeHub, load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = load(REPO, revision=OLD)
    assert first.checkpoint.id == REPO
    assert (first.checkpoint.revision, first.checkpoint.origin) == (OLD, "hub")
    assert first.checkpoint.folder.is_relative_to(tmp_path / "cache")
    hub.requests.clear()
    assert load(REPO, revision=OLD).checkpoint == first.checkpoint
    assert hub.requests == []
    use_endpoint(monkeypatch, closed_port())
    assert load(REPO, revision=OLD).config == first.config


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("main", NEW), ("v1", OLD)])
def test_a_branch_is_resolved_to_its_commit(
    hub: FakeHub, load: Any, revision: str | None, commit: str
) -> None:
    assert load(REPO, revision=revision).checkpoint.revision == commit
    assert load(REPO, revision=revision, local_files_only=True).checkpoint.revision == commit
    hub.branches = {"main": OLD, "v1": NEW}  # a moved branch is followed
    assert load(REPO, revision=revision).checkpoint.revision == ({OLD, NEW} - {commit}).pop()


def test_both_files_are_of_one_commit_even_if_the_branch_moves(hub: FakeHub, load: Any) -> None:
    answer = hub.answer

    def moving(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("model.safetensors"):
            hub.branches["main"] = OLD
        return answer(path)

    hub.answer = moving  # type: ignore[method-assign]
    checkpoint = load(REPO).checkpoint
    assert checkpoint.revision == NEW
    assert {path.name for path in checkpoint.folder.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    "refusal", [(503, ""), (429, ""), (401, "RepoNotFound"), (403, "GatedRepo"), (200, ""), None]
)
def test_the_cache_is_used_if_the_hub_fails_refuses_or_is_down(
    hub: FakeHub,
    load: Any,
    refusal: tuple[int, str] | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(REPO)
    if refusal is None:
        use_endpoint(monkeypatch, closed_port())
    else:
        hub.refusals[REPO] = refusal
    with caplog.at_level(logging.WARNING, "kronos_model"):
        assert load(REPO).checkpoint.revision == NEW
    if refusal != (200, ""):  # the library itself ignores an answer that only looks valid
        assert f"Using the cached commit {NEW}." in caplog.text


def test_offline_mode_sends_no_request(hub: FakeHub, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load(REPO)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load(REPO).checkpoint.revision == NEW
    with pytest.raises(
        CheckpointUnreachable, match="'someone/tokenizer' at revision 'v1' is not cached, and offline"
    ):
        load(REPO, revision="v1")
    with pytest.raises(CheckpointUnreachable, match="kronos-tiny"):
        load(REPO, revision="c" * 40)
    assert hub.requests == []


def test_a_cache_that_lacks_the_weights_is_completed(hub: FakeHub, load: Any) -> None:
    folder = load(REPO).checkpoint.folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointUnreachable):
        load(REPO, local_files_only=True)
    assert load(REPO, revision=NEW).checkpoint.folder == folder


@pytest.mark.parametrize("revision", [None, OLD])
def test_an_unreachable_hub_is_reported_at_once_with_remedies(
    hub: FakeHub, load: Any, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    endpoint = closed_port()
    use_endpoint(monkeypatch, endpoint)
    monkeypatch.setattr("time.sleep", lambda _seconds: pytest.fail("waited for a hub that is not there"))
    with pytest.raises(CheckpointUnreachable) as caught:
        load(REPO, revision=revision)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in (REPO, endpoint, "HF_HOME", "local folder", "'kronos-tiny'"))


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        (
            (401, "RepoNotFound"),
            CheckpointMissing,
            "shows no model 'someone/tokenizer'.*spelling.*private.*HF_TOKEN",
        ),
        ((404, "RepoNotFound"), CheckpointMissing, "shows no model 'someone/tokenizer'"),
        ((401, ""), CheckpointMissing, "refuses access to 'someone/tokenizer'.*Check the token"),
        ((403, "GatedRepo"), CheckpointMissing, "'someone/tokenizer' is gated: ask for access"),
        ((500, ""), CheckpointUnreachable, "'someone/tokenizer' could not be fetched from .*500"),
        ((429, ""), CheckpointUnreachable, "'someone/tokenizer' could not be fetched from .*429"),
        ((200, ""), CheckpointUnreachable, "'someone/tokenizer' could not be fetched from .*X-Repo-Commit"),
    ],
)
def test_refusals_of_the_hub_are_explained(
    hub: FakeHub, load: Any, refusal: tuple[int, str], kind: type[CheckpointError], message: str
) -> None:
    hub.refusals[REPO] = refusal
    with pytest.raises(CheckpointError, match=message) as caught:
        load(REPO)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("revision", ["v9", "c" * 40])
def test_an_unknown_revision_is_named(hub: FakeHub, load: Any, revision: str) -> None:
    with pytest.raises(CheckpointMissing, match=f"no checkpoint '{REPO}' at revision '{revision}'"):
        load(REPO, revision=revision)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_repository_without_one_of_the_files_is_refused(hub: FakeHub, load: Any, name: str) -> None:
    files = {**hub.commits[NEW], "pytorch_model.bin": b"a pickle"}
    del files[name]
    hub.commits[NEW] = files
    with pytest.raises(CheckpointMissing, match=r"pytorch_model\.bin.* are never loaded"):
        load(REPO)
    assert not any(path.endswith("pytorch_model.bin") for path in hub.requests)


def test_a_cache_that_cannot_be_written_is_explained(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="'someone/tokenizer' could not be downloaded into the cache"):
        KronosTokenizer.from_pretrained(REPO, cache_dir=tmp_path / "file")


def test_the_token_is_sent(hub: FakeHub, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "kronos_model.checkpoints.source.get_hf_file_metadata",
        lambda *_args, token, **_options: seen.append(token),
    )
    load(REPO, token="hf_secret")
    assert seen == ["hf_secret"]


def test_environment_variables_alone_select_an_offline_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--NeoQuasar--Kronos-Tokenizer-base" / "snapshots" / OLD
    shutil.copytree(TOKENIZER, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(OLD)
    program = (
        "from kronos_model.tokenizer import KronosTokenizer as T\n"
        "from kronos_model.errors import CheckpointUnreachable\n"
        "print(T.from_pretrained('NeoQuasar/Kronos-Tokenizer-base').checkpoint.revision)\n"
        "try: T.from_pretrained('NeoQuasar/Kronos-Tokenizer-2k')\n"
        "except CheckpointUnreachable as error: print(error.code)\n"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": closed_port()}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [OLD, "CHECKPOINT_UNREACHABLE"], done.stderr
