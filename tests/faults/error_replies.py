"""What Redis and proxies in front of it answer when they do not do what was asked."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.faults.proxy import SCRIPT_NAMES, Request, Rule

ERRORS: Final = (
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist on disk.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM this user has no permissions to run this command",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "NOSCRIPT No matching script. Please use EVAL.",
    "ERR max number of clients reached",
    "ERR upstream failure",
)

COMMANDS: Final = [
    "BRPOP", "CLIENT", "DEL", "EVALSHA", "EXEC", "EXISTS", "EXPIRE", "GET", "HELLO", "HDEL", "HEXISTS",
    "HGET", "HMGET", "LLEN", "LPUSH", "MGET", "MULTI", "PING", "PSUBSCRIBE", "PUBLISH", "SADD", "SCRIPT",
    "SET", "SMEMBERS", "SREM", "SUBSCRIBE", "TIME", "ZADD", "ZRANGE", "ZREM", "ZREMRANGEBYSCORE",
]  # fmt: skip
"""What workers and clients send."""
SCRIPTS: Final = sorted(set(SCRIPT_NAMES.values()))


@dataclass(frozen=True)
class Case:
    """An error, which requests get it, and when. As JSON in ``FAULT_CASE`` it is the only one of a test.

    Attributes:
        target: A command, ``script`` and the name of one, or ``any`` request.
        is_after: Redis executes the command first.
        skip: Matching requests before the first that gets the error.
        lasts_s: Seconds from that moment.
        is_cut: Whether all connections are closed when the jobs have been sent.
        is_client: Whether the client gets the errors; else the workers do.
    """

    target: str
    error: str
    is_after: bool
    skip: int
    lasts_s: float
    is_cut: bool = False
    is_client: bool = False

    def rule(self) -> Rule:
        """The proxy's rule. It begins with the first request that gets the error."""
        num_left = self.skip

        def matches(request: Request) -> bool:
            nonlocal num_left
            if self.target not in ("any", request.command, f"script {request.script}"):
                return False
            num_left -= 1
            if num_left < 0 and rule.until == float("inf"):
                rule.until = time.monotonic() + self.lasts_s
            return num_left < 0

        rule = Rule(self.error, matches, self.is_after)
        return rule


TARGETS: Final = st.one_of(
    st.just("any"), st.sampled_from([f"script {name}" for name in SCRIPTS]), st.sampled_from(COMMANDS)
)


def cases(longest_s: float) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        target=TARGETS,
        error=st.sampled_from(ERRORS),
        is_after=st.booleans(),
        skip=st.integers(0, 12),
        lasts_s=st.sampled_from([0.1, 0.3, longest_s / 3, longest_s]),
        is_cut=st.booleans(),
        is_client=st.booleans(),
    )


def each_case(run: Callable[[Case], None], num_examples: int, longest_s: float, *first: Case) -> None:
    """Call ``run`` with these cases and with generated ones. The first that fails ends the test."""

    def run_and_show(case: Case) -> None:
        try:
            run(case)
        except BaseException as error:
            error.add_note(f"again: FAULT_CASE='{json.dumps(asdict(case))}' and this test")
            raise

    if "FAULT_CASE" in os.environ:
        first, num_examples = (Case(**json.loads(os.environ["FAULT_CASE"])),), 0
    for case in first:
        run_and_show(case)
    if num_examples:
        # Not made smaller: a failing case takes long, and is a single fault.
        generated = settings(max_examples=num_examples, phases=(Phase.generate,), database=None)
        generated(given(cases(longest_s))(run_and_show))()
