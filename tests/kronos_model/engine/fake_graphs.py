"""A fake of the calls of ``torch.cuda`` that record graphs, with the rules of PyTorch 2.13."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

NUM_STREAMS = 4
_handles = itertools.count()


class FakeStream:
    """One of those that are handed out in turn. ``num_dropped``: graphs whose end freed its workspace."""

    def __init__(self) -> None:
        self.cuda_stream, self.num_dropped = next(_handles), 0

    def wait_stream(self, other: "FakeStream") -> None:
        pass


class FakeGraph:
    """A graph without a content. ``replayed_by`` receives the thread of each replay."""

    def __init__(self, replayed_by: list[threading.Thread]) -> None:
        self._replayed_by = replayed_by
        self._stream = FakeStream()
        self._num_dropped = 0

    def begin(self, stream: FakeStream) -> None:
        self._stream, self._num_dropped = stream, stream.num_dropped

    def __del__(self) -> None:
        self._stream.num_dropped += 1

    def replay(self) -> None:
        assert self._stream.num_dropped == self._num_dropped, "the workspace of cuBLAS was freed"
        self._replayed_by.append(threading.current_thread())


class FakeCuda:
    """In place of the module.

    Attributes:
        failing: Numbers of recordings that fail, from 0 on.
        threads: The thread of each recording.
        replayed_by: The thread of each replay.
        on_begin: Called while a recording begins.
    """

    def __init__(self, failing: set[int] = frozenset()) -> None:
        self.failing = failing
        self.threads: list[threading.Thread] = []
        self.replayed_by: list[threading.Thread] = []
        self.on_begin: Callable[[], None] = lambda: None
        self._recording = threading.Lock()
        self._default = FakeStream()
        self._of_thread = threading.local()
        self._pools = itertools.count()
        self._stream_of_pool: dict[int, FakeStream] = {}
        self._broken_pools: set[int] = set()
        self.graph_pool_handle = lambda: next(self._pools)
        self._streams = itertools.cycle([FakeStream() for _ in range(NUM_STREAMS)])
        self.Stream = lambda: next(self._streams)
        self.CUDAGraph = partial(FakeGraph, self.replayed_by)
        self.synchronize = lambda: None

    @property
    def is_recording(self) -> bool:
        return self._recording.locked()

    def current_stream(self) -> FakeStream:
        return getattr(self._of_thread, "stream", self._default)

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._of_thread.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._of_thread.stream = before

    @contextmanager
    def graph(
        self, graph: FakeGraph, *, pool: int, stream: FakeStream, capture_error_mode: str
    ) -> Iterator[None]:
        fails = len(self.threads) in self.failing
        self.threads.append(threading.current_thread())
        assert self.current_stream() is self._default
        assert capture_error_mode == "thread_local"  # others may move models meanwhile
        assert self._stream_of_pool.setdefault(pool, stream) is stream, "the pool is not shared"
        if pool in self._broken_pools:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        assert self._recording.acquire(blocking=False), "two recordings at once"
        graph.begin(stream)
        self._of_thread.stream = stream  # and stays so if the recording fails
        try:
            self.on_begin()
            yield
        finally:
            self._recording.release()
        if fails:
            self._broken_pools.add(pool)
            raise RuntimeError("operation failed due to a previous error during capture")
        self._of_thread.stream = self._default
