"""``GraphCache``: the steps of one engine that CUDA has recorded, each replayed by one launch.

What PyTorch requires (2.13, ``torch/cuda/graphs.py`` and the CUDA allocator):

- Graphs share memory only if they are recorded in one pool and on one stream.
- A process records one graph at a time.
- After a recording that failed, its pool counts as recording for ever.
- A graph keeps using the workspace of the cuBLAS handle that it was recorded with. A handle belongs to a
  thread; after the thread's end another takes it over. So one thread records and replays, and lives as long.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

import torch

log = logging.getLogger(__name__)

MAX_GRAPHS: Final = 64
"""Each takes some megabytes in the driver; their activations share one pool."""
USES_UNTIL_RECORDED: Final = 16
"""A recording costs as much as many steps, and most shapes are rare."""
FACTOR_AFTER_FAILURE: Final = 8
"""After a failed recording, a shape must be used so many times as often before it is tried."""

_recording = threading.Lock()

Key = TypeVar("Key")


class GraphCache(Generic[Key]):
    """Runs a step by key: replays its graph if there is one, the most recently used ``capacity`` of them.

    Graphs are recorded only by ``record_next``, which belongs into idle time.

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
        try:
            graph = self._record(key)
        except RuntimeError:
            log.warning("CUDA did not record a step of %s, which runs unrecorded", key, exc_info=True)
            self._pool = None
            self._due.clear()
            self._uses_until_recorded *= FACTOR_AFTER_FAILURE
            return
        self._graphs[key] = graph
        if len(self._graphs) > self._capacity:  # the recording has waited for all replays
            self._graphs.popitem(last=False)

    def _record(self, key: Key) -> Any:
        cuda = self._cuda
        assert cuda is not None  # else no key is due
        if self._stream is None:
            self._stream = cuda.Stream()
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
