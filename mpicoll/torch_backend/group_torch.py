"""A process group that torch takes for one of its own: each method hands over to door 1's function. Imports torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from mpicoll.api import coalesced, collectives, point_to_point, reductions
from mpicoll.api.world import close_group
from mpicoll.errors import ArgumentError, DTypeError
from mpicoll.groups import world
from mpicoll.groups.group import ProcessGroup
from mpicoll.torch_backend import NAME, sparse_torch, versions_torch
from mpicoll.torch_backend.calls_torch import as_op, message, operation
from mpicoll.torch_backend.work_torch import TorchWork, joined
from mpicoll.transport.work import Work, seconds

# What torch calls a group without a description.
_NO_DESCRIPTION = ("", "undefined", "default_pg")


class TorchGroup(ProcessGroup, c10d.ProcessGroup):
    """A ProcessGroup for both doors. torch calls its methods from Python and C++; the options say the rest.

    A synchronous operation is done when its method returns, and gives None.
    """

    work_class = TorchWork
    sequence = 0
    together: list[Work] | None = None  # the operations of a coalescing manager
    stand_in: Any = None  # a group that dispatch_torch asks
    supports_coalescing = False
    supports_time_estimate = False
    options = None
    _torch_name = ""
    _torch_store: Any = None
    _lazy_store: Any = None  # the default group's, if nobody gave it one

    def __init__(self, label: str, ranks: tuple[int, ...], comm: Any, private: Any, *rest: Any) -> None:
        versions_torch.initialise(self, private.Get_rank(), private.Get_size())
        ProcessGroup.__init__(self, label, ranks, comm, private, *rest)

    @classmethod
    def over(cls, group: ProcessGroup) -> TorchGroup:
        """`group` as one of this class: the same group, of which either may be used."""
        if isinstance(group, cls):
            return group
        other = cls.__new__(cls)
        versions_torch.initialise(other, group.rank(), group.size())
        other.__dict__ = group.__dict__
        return other

    @operation("broadcast", c10d.BroadcastOptions, 1, "root", "timeout")
    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """``torch.distributed.broadcast``."""
        return self._timed(collectives.broadcast(_one(tensors), None, self, opts.asyncOp, opts.rootRank), opts)

    @operation("all_reduce", c10d.AllreduceOptions, 1, "op", "timeout")
    def allreduce(self, tensors: Any, opts: Any) -> Any:
        """``torch.distributed.all_reduce``; of sparse tensors too."""
        op = as_op(opts.reduceOp)
        try:
            work = reductions.all_reduce(_one(tensors), op, self, opts.asyncOp)
        except DTypeError:
            if not tensors[0].is_sparse:
                raise
            return sparse_torch.all_reduce(self, tensors[0], op, opts.asyncOp)
        return None if work is None else self._timed(work, opts)

    @operation("all_reduce_coalesced", c10d.AllreduceCoalescedOptions, 0)
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        """``torch.distributed.all_reduce_coalesced``."""
        return self._timed(coalesced.all_reduce_coalesced(tensors, as_op(opts.reduceOp), self, opts.asyncOp), opts)

    @operation("reduce", c10d.ReduceOptions, 1, "root", "op", "timeout")
    def reduce(self, tensors: Any, opts: Any) -> Any:
        """``torch.distributed.reduce``."""
        work = reductions.reduce(_one(tensors), None, as_op(opts.reduceOp), self, opts.asyncOp, opts.rootRank)
        return self._timed(work, opts)

    @operation("all_gather", c10d.AllgatherOptions, 2, "timeout")
    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """``torch.distributed.all_gather``."""
        work = collectives.all_gather(_one(output_tensors), _one(input_tensors), self, opts.asyncOp)
        return self._timed(work, opts)

    @operation("all_gather_into_tensor", c10d.AllgatherOptions, 0, "timeout")
    def all_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        """``torch.distributed.all_gather_into_tensor``."""
        return self._timed(collectives.all_gather_into_tensor(output, input, self, opts.asyncOp), opts)

    @operation("all_gather_coalesced", c10d.AllgatherOptions, 0)
    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any) -> Any:
        """``torch.distributed.all_gather_coalesced``: the i-th list of outputs holds what rank i gave."""
        lists = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self._timed(coalesced.all_gather_coalesced(lists, input_list, self, opts.asyncOp), opts)

    @operation("all_gather_into_tensor_coalesced", c10d.AllgatherOptions, 0)
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """``_coalescing_manager`` around ``torch.distributed.all_gather_into_tensor``."""
        return self._timed(coalesced.all_gather_into_tensor_coalesced(outputs, inputs, self, opts.asyncOp), opts)

    @operation("gather", c10d.GatherOptions, 2, "root", "timeout")
    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """``torch.distributed.gather``."""
        outputs = output_tensors[0] if output_tensors else None
        work = collectives.gather(_one(input_tensors), outputs or None, None, self, opts.asyncOp, opts.rootRank)
        return self._timed(work, opts)

    @operation("scatter", c10d.ScatterOptions, 2, "root", "timeout")
    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """``torch.distributed.scatter``."""
        inputs = input_tensors[0] if input_tensors else None
        work = collectives.scatter(_one(output_tensors), inputs or None, None, self, opts.asyncOp, opts.rootRank)
        return self._timed(work, opts)

    @operation("reduce_scatter", c10d.ReduceScatterOptions, 2, "op", "timeout")
    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """``torch.distributed.reduce_scatter``."""
        op = as_op(opts.reduceOp)
        work = reductions.reduce_scatter(_one(output_tensors), _one(input_tensors), op, self, opts.asyncOp)
        return self._timed(work, opts)

    @operation("reduce_scatter_tensor", c10d.ReduceScatterOptions, 0)
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Any:
        """``torch.distributed.reduce_scatter_tensor``."""
        work = reductions.reduce_scatter_tensor(output, input, as_op(opts.reduceOp), self, opts.asyncOp)
        return self._timed(work, opts)

    @operation("reduce_scatter_tensor_coalesced", c10d.ReduceScatterOptions, 0)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """``_coalescing_manager`` around ``torch.distributed.reduce_scatter_tensor``."""
        op = as_op(opts.reduceOp)
        return self._timed(coalesced.reduce_scatter_tensor_coalesced(outputs, inputs, op, self, opts.asyncOp), opts)

    @operation("all_to_all", c10d.AllToAllOptions, 0)
    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """``torch.distributed.all_to_all``."""
        return self._timed(collectives.all_to_all(output_tensors, input_tensors, self, opts.asyncOp), opts)

    @operation("all_to_all_single", c10d.AllToAllOptions, 0, "timeout")
    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any
    ) -> Any:
        """``torch.distributed.all_to_all_single``."""
        work = collectives.all_to_all_single(output, input, output_split_sizes, input_split_sizes, self, opts.asyncOp)
        return self._timed(work, opts)

    @operation("barrier", c10d.BarrierOptions, 0, "timeout")
    def barrier(self, opts: Any) -> Any:
        """``torch.distributed.barrier``."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else None
        return self._timed(collectives.barrier(self, opts.asyncOp, None, timeout), opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """``mpicoll.monitored_barrier``; ``torch.distributed.monitored_barrier`` calls it of gloo's groups alone."""
        collectives.monitored_barrier(self, timeout, wait_all_ranks)

    @message("send")
    def send(self, tensors: Any, dstRank: int, tag: int) -> Any:
        """``torch.distributed.isend``."""
        return point_to_point.isend(_one(tensors), None, self, tag, dstRank)

    @message("recv")
    def recv(self, tensors: Any, srcRank: int, tag: int) -> Any:
        """``torch.distributed.irecv``."""
        return point_to_point.irecv(_one(tensors), None, self, tag, srcRank)

    @message("recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """``torch.distributed.irecv`` from whoever sends first."""
        return point_to_point.irecv(_one(tensors), None, self, tag)

    def _timed(self, work: Work | None, opts: Any) -> Work | None:
        if work is not None and opts.timeout > timedelta(0):
            work.limit = opts.timeout.total_seconds()
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        self.together = []

    def _end_coalescing(self, device: Any = None) -> TorchWork:
        works, self.together = self.together or [], None
        return joined(self.where("coalesced"), works, self.timeout)

    def name(self) -> str:
        """The backend's name, as torch has it."""
        return NAME

    getBackendName = _get_backend_name = name

    def getGroupName(self) -> str:
        """Torch's name of the group, by which functional collectives find it."""
        return self._torch_name

    group_name = property(getGroupName)

    def _set_group_name(self, name: str) -> None:
        self._torch_name = name

    @property
    def group_desc(self) -> str:
        """A name for people."""
        return self.label

    def _set_group_desc(self, description: str | None) -> None:
        if description and description not in _NO_DESCRIPTION and description != self.label:
            world.current().rename(self, description)

    def get_group_store(self) -> Any:
        """The store that torch made for the group."""
        return self._torch_store

    @property
    def _device_types(self) -> list[torch.device]:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return [torch.device("cpu")] + ([] if accelerator is None else [torch.device(accelerator.type)])

    def _get_backend(self, device: Any) -> Any:
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self.sequence

    def _set_sequence_number_for_group(self) -> None:
        self.sequence = 0

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a wait for a Work may take from now on."""
        self.timeout = seconds(timeout)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> TorchGroup | None:
        """A group of some ranks of this one, in their order; the members alone make it. None on the other ranks."""
        if self.rank() not in ranks:
            return None
        limit = self.timeout if timeout is None else seconds(timeout)
        group = world.current().create([self.ranks[rank] for rank in ranks], limit)
        assert isinstance(group, TorchGroup)
        group._torch_store = self._torch_store
        group._set_group_name(group_name or group.label)
        group._set_group_desc(group_desc)
        return group

    @property
    def supports_splitting(self) -> bool:
        """Whether it has a `split_group`; not where torch looks for a communicator that NCCL could split."""
        return sys._getframe(1).f_code.co_name != "_get_split_source"

    def eager_connect_single_device(self, device: Any) -> None:
        """Keep the device: torch tells it here alone. MPI is connected."""
        self.bound_device_id = device

    def shutdown(self) -> None:
        """Free the group; the default group with all others. ``torch.distributed.destroy_process_group`` calls it."""
        if not self.closed:
            close_group(self)

    def abort(self) -> None:
        """Give up what is under way, and the group with it. ``torch.distributed`` calls it to abort groups. Local."""
        ProcessGroup.abort(self)
        if world.default_group() is self:
            world.abandon_world()


def _one(tensors: Any) -> Any:
    if len(tensors) != 1:
        raise ArgumentError(f"tensors: expected one, as of one device for each rank, got {len(tensors)}")
    return tensors[0]


versions_torch.keep_compiler_out(TorchGroup)
versions_torch.add_older_names(TorchGroup)
