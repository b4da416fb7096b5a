"""Groups of ranks, the communications between them, the transports, and the launcher."""

from nuvec.distributed.axis_group import AxisGroup, axis_group
from nuvec.distributed.collectives.all_reduce import all_max, all_min, all_sum, broadcast
from nuvec.distributed.collectives.gather_scatter import all_gather, all_to_all, sum_scatter
from nuvec.distributed.collectives.permute import permute
from nuvec.distributed.collectives.point_to_point import recv, recv_like, send
from nuvec.distributed.collectives.replicated import sum_gradients, sum_partials
from nuvec.distributed.communicator import Communicator
from nuvec.distributed.group import (
    Group,
    barrier,
    default_group,
    init,
    is_available,
    run_local,
    set_default_group,
    synchronize,
)

__all__ = [
    "AxisGroup",
    "Communicator",
    "Group",
    "all_gather",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "axis_group",
    "barrier",
    "broadcast",
    "default_group",
    "init",
    "is_available",
    "permute",
    "recv",
    "recv_like",
    "run_local",
    "send",
    "set_default_group",
    "sum_gradients",
    "sum_partials",
    "sum_scatter",
    "synchronize",
]
