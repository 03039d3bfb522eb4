"""admit: sends one job, as a client does."""

from typing import Any

from kronos_client.redis.admission import Admission
from kronos_client.redis.message import Sending


def admit(
    admission: Admission, job_id: str, content: str = '{"pred_len":5}', queue: str = "cpu", **more: Any
) -> bool:
    """Whether the job was sent; raises its error."""
    (sent,) = admission.admit([Sending(job_id, content, queue, **more)])
    if isinstance(sent, Exception):
        raise sent
    return sent == "claimed"
