"""ignite.distributed: its words, `auto_dataloader`, `auto_model`, and an evaluator whose metrics ignite reduces."""

from __future__ import annotations

import logging
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch.nn.functional import cross_entropy

from tests.clients.programs.start import BATCH, CLASSES, SIZE, WAY, network, rows, tell, weights

if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()  # in place of idist.initialize(), which knows a few names alone
elif WAY == "gloo":
    idist.initialize("gloo")
logging.disable()

rank, size = idist.get_rank(), idist.get_world_size()
assert (size, idist.get_nproc_per_node(), idist.get_nnodes(), idist.get_local_rank()) == (SIZE, SIZE, 1, rank)
everybody = range(size)
assert idist.all_reduce(rank + 1) == sum(other + 1 for other in everybody)
assert idist.all_reduce(float(rank), "MAX") == size - 1
assert torch.equal(idist.all_reduce(torch.tensor([rank, 2.0])), torch.tensor([sum(everybody), 2.0 * size]))
assert idist.all_gather(rank) == list(everybody)
assert idist.all_gather("abc" * (rank + 1)) == ["abc" * (other + 1) for other in everybody]
assert idist.all_gather({"rank": rank}) == [{"rank": other} for other in everybody]
assert idist.all_gather(torch.full((2,), rank)).tolist() == [other for other in everybody for _ in range(2)]
assert idist.broadcast("from the last" if rank == size - 1 else None, src=size - 1, safe_mode=True) == "from the last"
assert idist.broadcast(torch.tensor([float(rank)]), src=size - 1).tolist() == [size - 1]
if size > 1:
    assert idist.all_reduce(rank, group=idist.new_group([0, 1])) == 1
    shares = idist.all_gather_tensors_with_shapes(torch.full((rank + 1, 2), rank), [[1, 2], [2, 2]])
    assert [share.tolist() for share in shares] == [[[0, 0]], [[1, 1], [1, 1]]]
idist.barrier()
with idist.one_rank_first():
    pass

model = idist.auto_model(network())
assert isinstance(model, torch.nn.parallel.DistributedDataParallel) == (size > 1)
optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
batches: Any = idist.auto_dataloader(rows(), batch_size=BATCH, shuffle=False)
create_supervised_trainer(model, optimizer, cross_entropy).run(batches, max_epochs=3)
metrics: dict[str, Any] = {"accuracy": Accuracy(), "loss": Loss(cross_entropy)}
metrics["macro"] = Accuracy() * CLASSES
found = create_supervised_evaluator(model, metrics).run(batches).metrics
plain = model.module if size > 1 else model
assert isinstance(plain, torch.nn.Module)
tell(**found, **weights(plain.named_parameters()))
idist.finalize()
assert not torch.distributed.is_initialized()
