"""The shm transport: the mesh of the ranks of one host, which share memory.

It is what the mesh does by itself where all ranks are on one host; asked for by name it raises
where they are not, rather than use the network.
"""

from __future__ import annotations

from nuvec.core.errors import ConfigurationError
from nuvec.distributed.transports.job import Job
from nuvec.distributed.transports.mesh import MeshCommunicator, connect_mesh

__all__ = ["ShmCommunicator", "shm_communicator"]


class ShmCommunicator(MeshCommunicator):
    """One rank's end of a group whose ranks are on one host."""

    @property
    def name(self) -> str:
        """``"shm"``; ``"mesh"`` where no memory could be shared, and the sockets are used."""
        return "shm" if self._memory is not None or self.size == 1 else "mesh"


def shm_communicator(job: Job) -> ShmCommunicator:
    """Connect to every other rank of `job`, all on this host, and share memory with them.

    Raises `ConfigurationError` for ranks on other hosts, or that are reached over TCP. Where the
    system gives no shared memory the ranks use their sockets, and the lowest rank logs why.
    """
    mine = job.addresses[job.rank]
    for rank, address in enumerate(job.addresses):
        if rank != job.rank and not (mine.unix and address.unix and address.host == mine.host):
            raise ConfigurationError(
                f"the shm backend is for ranks of one host that have Unix sockets: rank {job.rank} "
                f"(host {mine.host}) and rank {rank} (host {address.host}) do not. "
                "`nuvec.launch -n` without hosts starts such ranks; backend='mesh' takes any"
            )
    return connect_mesh(job, ShmCommunicator, True)
