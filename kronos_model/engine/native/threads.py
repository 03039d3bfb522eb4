"""How the threads of a step wait for each other and, between steps, for a job.

Waiting spins for a short time, then sleeps. ``sync`` is an array of int64 in memory that all threads share.
"""

from numba import njit, types

from kronos_model.engine.native.products import IS_CACHED, OPTIONS, compiled
from kronos_model.engine.native.vectors import atomic_add, atomic_load, atomic_store, pause

SYNC_SIZE = 128
ARRIVED, GENERATION, JOB_NUMBER = 0, 16, 32  # a cache line apart
MUTEX, CONDITION = 64, 96  # room for pthread's

SPINS_AT_BARRIER = 4000
"""Before another thread may have the core."""
SPINS_FOR_JOB = 20_000
"""Before sleeping: longer than sampling takes between the two halves of a step."""


def _external(name, num_pointers):
    return types.ExternalFunction(name, types.int32(*[types.intp] * num_pointers))


sched_yield = _external("sched_yield", 0)
mutex_init, cond_init = _external("pthread_mutex_init", 2), _external("pthread_cond_init", 2)
mutex_lock, mutex_unlock = _external("pthread_mutex_lock", 1), _external("pthread_mutex_unlock", 1)
cond_wait, cond_broadcast = _external("pthread_cond_wait", 2), _external("pthread_cond_broadcast", 1)


@njit(cache=IS_CACHED, **OPTIONS)
def prepare(sync):
    """Make it ready for use."""
    sync[:] = 0
    mutex_init(sync.ctypes.data + MUTEX * 8, 0)
    cond_init(sync.ctypes.data + CONDITION * 8, 0)


@compiled
def barrier(sync, num_threads):
    """Wait until all threads are here."""
    if num_threads == 1:
        return
    generation = atomic_load(sync, GENERATION)
    if atomic_add(sync, ARRIVED, 1) == num_threads - 1:
        atomic_store(sync, ARRIVED, 0)
        atomic_store(sync, GENERATION, generation + 1)
        return
    spins = 0
    while atomic_load(sync, GENERATION) == generation:
        pause()
        spins += 1
        if spins > SPINS_AT_BARRIER:
            sched_yield()


@compiled
def post_job(sync):
    """Wake the other threads for the next job."""
    mutex_lock(sync.ctypes.data + MUTEX * 8)
    atomic_store(sync, JOB_NUMBER, atomic_load(sync, JOB_NUMBER) + 1)
    cond_broadcast(sync.ctypes.data + CONDITION * 8)
    mutex_unlock(sync.ctypes.data + MUTEX * 8)


@compiled
def wait_for_job(sync, seen):
    """Wait for a job after number ``seen``; returns its number."""
    spins = 0
    while atomic_load(sync, JOB_NUMBER) == seen and spins < SPINS_FOR_JOB:
        pause()
        spins += 1
    if atomic_load(sync, JOB_NUMBER) == seen:
        mutex_lock(sync.ctypes.data + MUTEX * 8)
        while atomic_load(sync, JOB_NUMBER) == seen:
            cond_wait(sync.ctypes.data + CONDITION * 8, sync.ctypes.data + MUTEX * 8)
        mutex_unlock(sync.ctypes.data + MUTEX * 8)
    return atomic_load(sync, JOB_NUMBER)


@compiled
def part_of(count, thread, num_threads):
    """The items of a thread, [first, last)."""
    return count * thread // num_threads, count * (thread + 1) // num_threads
