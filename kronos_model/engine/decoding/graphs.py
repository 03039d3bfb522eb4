"""``GraphCache``: the steps of one engine that CUDA has recorded, each replayed by one launch.

What PyTorch requires (2.13, ``torch/cuda/graphs.py`` and the CUDA allocator):

- Graphs share memory only if they are recorded in one pool and on one stream.
- A process records one graph at a time.
- After a recording that failed, its pool counts as recording for ever.
- A graph that is dropped frees the cuBLAS workspace of its stream, which all graphs of this stream use. So
  graphs are dropped all at once, and no two caches have the same stream: ``Stream()`` hands out 32 in turn.
- A graph keeps using the workspace of the cuBLAS handle that it was recorded with. A handle belongs to a
  thread; after the thread's end another takes it over. So one thread records and replays, and lives as long.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import ModuleType
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

import torch

log = logging.getLogger(__name__)

MAX_GRAPHS: Final = 64
"""Each takes some megabytes in the driver; their activations share one pool."""
USES_UNTIL_RECORDED: Final = 16
"""A recording costs as much as many steps, and most shapes are rare."""
FACTOR_AFTER_FAILURE: Final = 8
"""After a failed recording, a shape must be used so many times as often before it is tried."""

NUM_STREAMS: Final = 32
"""That PyTorch has for a device."""

_recording = threading.Lock()
_caches: "WeakSet[GraphCache[Any]]" = WeakSet()
_choosing_stream = threading.Lock()

Key = TypeVar("Key")


class GraphCache(Generic[Key]):
    """Runs a step by key: replays its graph if there is one, of at most ``capacity``.

    Graphs are recorded only by ``record_next``, which belongs into idle time. If there are ``capacity``, all
    are dropped and the half that was used last is recorded again.

    Args:
        step: Launches the work of a key. To record it, it is run two more times.
        cuda: ``torch.cuda``, or a fake; None if the device records no graphs.
    """

    def __init__(
        self,
        step: Callable[[Key], None],
        device: torch.device,
        *,
        cuda: ModuleType | None,
        capacity: int = MAX_GRAPHS,
    ) -> None:
        self._step, self._device, self._cuda, self._capacity = step, device, cuda, capacity
        self._graphs: OrderedDict[Key, Any] = OrderedDict()  # the least recently used first
        self._num_uses: Counter[Key] = Counter()  # without a graph
        self._uses_until_recorded = USES_UNTIL_RECORDED
        self._due: dict[Key, None] = {}  # to be recorded, in this order
        self._stream: Any = None
        self._pool: Any = None
        with _choosing_stream:
            _caches.add(self)

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device current: streams, pools and graphs belong to the current device."""
        return nullcontext() if self._cuda is None else self._cuda.device(self._device)

    def run(self, key: Key) -> None:
        """Replay the graph of this key, or run its step."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            graph.replay()
            return
        self._num_uses[key] += 1
        if self._num_uses[key] % self._uses_until_recorded == 0:
            self.request([key])
        self._step(key)

    def request(self, keys: Iterable[Key]) -> None:
        """Have keys recorded, before they are used often."""
        if self._cuda is not None:
            self._due |= dict.fromkeys(key for key in keys if key not in self._graphs)

    def next_due(self) -> Key | None:
        """The key that ``record_next`` would record."""
        return next(iter(self._due), None)

    def record_next(self) -> None:
        """Record the next key. If that fails, its step goes on unrecorded, and is tried again much later."""
        key = next(iter(self._due))
        del self._due[key]
        if len(self._graphs) >= self._capacity:
            self._record_again(self._capacity // 2)
        try:
            graph = self._record(key)
        except Exception:  # a library that compiles for the first time may raise anything
            log.warning("CUDA did not record a step of %s, which runs unrecorded", key, exc_info=True)
            self._due.clear()
            self._record_again(self._capacity)
            self._uses_until_recorded *= FACTOR_AFTER_FAILURE
            return
        self._graphs[key] = graph

    def _record_again(self, count: int) -> None:
        """Drop all graphs and have the ``count`` that were used last recorded anew."""
        newest_first = list(reversed(self._graphs))
        assert self._cuda is not None
        with suppress(RuntimeError):  # the device is lost: the next step says so
            self._cuda.synchronize()
        self._graphs.clear()
        self._pool = None
        self.request(newest_first[:count])

    def _record(self, key: Key) -> Any:
        cuda = self._cuda
        assert cuda is not None  # else no key is due
        if self._stream is None:
            with _choosing_stream:
                self._stream = self._unused_stream(cuda)
        if self._pool is None:
            self._pool = cuda.graph_pool_handle()
        graph, outer = cuda.CUDAGraph(), cuda.current_stream()
        with _recording, cuda.stream(outer):  # it becomes current again, even if recording fails half-way
            self._stream.wait_stream(outer)
            with cuda.stream(self._stream):
                for _ in range(2):  # libraries initialise on first use
                    self._step(key)
            outer.wait_stream(self._stream)
            with cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                self._step(key)
        return graph

    @staticmethod
    def _unused_stream(cuda: ModuleType) -> Any:
        """A stream that no other cache has."""
        used = {cache._stream.cuda_stream for cache in _caches if cache._stream is not None}
        streams = (cuda.Stream() for _ in range(NUM_STREAMS))
        unused = next((stream for stream in streams if stream.cuda_stream not in used), None)
        if unused is None:
            raise RuntimeError(f"{NUM_STREAMS} engines record steps: further ones run unrecorded")
        return unused
