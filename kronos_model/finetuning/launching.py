"""What starts training: the command line of one process, or of torchrun with several. No torch."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from kronos_model.devices.cores import intra_op_threads
from kronos_model.processes.children import module_command, own_environment

OF_A_GROUP: Final = {"WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""Variables of distributed training; those inherited from an enclosing run are dropped."""
EACH_GPU: Final = "gpu"
ANY_PORT: Final = 9
MAX_RESTARTS: Final = 3
"""Machine losses that a training with `--nodes MIN:MAX` survives."""
SHUTDOWN_TIMEOUT_S: Final = 120
"""Time to save the state after SIGTERM, before torchrun kills."""


def training_command(
    arguments: Sequence[str], *, processes: int | str = 1, nodes: str = "1", master: str | None = None
) -> list[str]:
    """The command line for ``python -m kronos_model.finetuning`` with these arguments.

    Args:
        processes: on each machine: a number, or ``EACH_GPU``.
        nodes: machines. Each runs this command. A number, or the fewest and the most as ``1:3``.
        master: address of one of these machines that all others reach, as ``HOST`` or ``HOST:PORT``.

    Raises OSError if the master's name is unknown, or no network leads there; ValueError if its name or
    port is invalid.
    """
    command = module_command("kronos_model.finetuning", *arguments)
    if processes == 1 and nodes == "1":
        return command
    options = [f"--nproc-per-node={processes}", f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}"]
    if nodes == "1":
        options.append("--standalone")
    else:
        assert master is not None, "several machines need a master"
        own, first = addresses(master)
        options += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={master}"]
        options.append(f"--local-addr={own}")
        if not ip_address(own).is_loopback:  # on one machine torchrun finds out which is the first
            options.append(f"--rdzv-conf=is_host={own == first}")
    if ":" in nodes:
        options.append(f"--max-restarts={MAX_RESTARTS}")
    return module_command("torch.distributed.run", *options, "--no-python", *command)


def addresses(master: str) -> tuple[str, str]:
    """The addresses of this machine, in the master's network, and of the master.

    Names of machines may lead elsewhere: Debian's own name of a machine has a loopback address.
    """
    place = urlsplit(f"//{master}")
    family, kind, _, _, target = socket.getaddrinfo(
        place.hostname, place.port or ANY_PORT, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as unsent:
        unsent.connect(target)
        return unsent.getsockname()[0], str(target[0])


def training_environment(threads: int | None, processes: int, master: str | None = None) -> dict[str, str]:
    """The environment for it; ``threads`` is a process's number of threads, by default its share of cores."""
    threads = intra_op_threads(threads, processes)
    environment = own_environment({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    if master is not None and (name := _interface(addresses(master)[0])) is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
    return {name: value for name, value in environment.items() if name not in OF_A_GROUP}


def _interface(address: str) -> str | None:
    import psutil  # Accelerate needs it; an app that only sends jobs does not

    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if address in {entry.address for entry in found}), None)
