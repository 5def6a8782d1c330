"""torch.distributed's words on MPI communicators, for torch tensors, numpy arrays and DLPack arrays.

Example:
    >>> import numpy as np, mpicoll as dist
    >>> dist.is_initialized() or dist.init_process_group()
    True
    >>> x = np.ones(3)
    >>> dist.all_reduce(x)
    >>> bool((x == dist.get_world_size()).all())
    True
"""

from mpicoll.api import differentiable
from mpicoll.api.coalesced import (
    all_gather_into_tensor_coalesced,
    all_reduce_coalesced,
    reduce_scatter_tensor_coalesced,
)
from mpicoll.api.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    scatter,
)
from mpicoll.api.groups import (
    GroupMember,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
)
from mpicoll.api.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from mpicoll.api.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, recv_tensor, send
from mpicoll.api.reductions import (
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from mpicoll.api.world import (
    destroy_process_group,
    get_backend,
    get_local_world_size,
    get_node_local_rank,
    get_pg_count,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
    local_device,
)
from mpicoll.data.reduction import ReduceOp
from mpicoll.errors import (
    ArgumentError,
    CollectiveTimeoutError,
    DTypeError,
    LaunchError,
    MessageError,
    MpicollError,
    MPIError,
    NotInitializedError,
    ObjectError,
    ThreadLevelError,
)
from mpicoll.groups.group import ProcessGroup
from mpicoll.torch_backend import registration as _registration
from mpicoll.transport.work import Work

_registration.install()

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "CollectiveTimeoutError",
    "DTypeError",
    "GroupMember",
    "LaunchError",
    "MPIError",
    "MessageError",
    "MpicollError",
    "NotInitializedError",
    "ObjectError",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "ThreadLevelError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "differentiable",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_local_world_size",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "local_device",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "recv_tensor",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
]
