"""lightning's ModelParallelStrategy: FSDP2's `fully_shard` in `configure_model`, and a checkpoint of it whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from tests.clients.programs.start import FOLDER, SIZE, WAY, loader, network, tell, weights

if WAY == "mpicoll":
    import mpicoll  # noqa: F401  makes the backend known to torch


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            fully_shard(self.network[0], mesh=self.device_mesh["data_parallel"])
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


parallel = {"data_parallel_size": SIZE, "tensor_parallel_size": 1, "save_distributed_checkpoint": False}
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=SIZE,
    strategy="auto" if WAY == "alone" else ModelParallelStrategy(**parallel, process_group_backend=WAY),
    max_epochs=3,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
trainer.fit(model, loader(trainer.global_rank))
trainer.save_checkpoint(Path(FOLDER) / "model.ckpt")
trainer.strategy.barrier()
saved = torch.load(Path(FOLDER) / "model.ckpt", weights_only=False)["state_dict"]
tell(
    sharded=WAY == "alone" or all(isinstance(weight, DTensor) for weight in model.parameters()),
    loss=trainer.callback_metrics["loss"].item(),
    **weights(model.network.named_parameters()),
    **{f"saved {name}": value for name, value in weights(saved.items()).items()},
)
