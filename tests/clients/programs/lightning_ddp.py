"""lightning's Trainer with its DDPStrategy: fit, a checkpoint, validate, test, predict; values logged and reduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.clients.programs.start import BATCH, CLASSES, FOLDER, SIZE, WAY, loader, network, tell, weights

if WAY == "mpicoll":
    import mpicoll  # noqa: F401  makes the backend known to torch

Batch = tuple[Tensor, Tensor]
PREPARED = Path(FOLDER) / "prepared"


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.area = torchmetrics.AUROC(task="multiclass", num_classes=CLASSES)

    def prepare_data(self) -> None:
        with PREPARED.open("a") as file:  # one rank does, and the others go on after it
            file.write("once ")

    def setup(self, stage: str) -> None:
        assert PREPARED.exists()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        self.log("rows", torch.tensor(len(batch[1])), reduce_fx="sum", on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        guess = self.network(batch[0])
        self.log("val_loss", cross_entropy(guess, batch[1]), sync_dist=True)
        self.accuracy(guess, batch[1])
        self.area(guess, batch[1])
        self.log_dict({"accuracy": self.accuracy, "area": self.area})
        assert self.all_gather(batch[1]).numel() == BATCH

    def test_step(self, batch: Batch, index: int) -> None:
        self.log("test_loss", cross_entropy(self.network(batch[0]), batch[1]), sync_dist=True)

    def predict_step(self, batch: Batch, index: int) -> Tensor:
        guess: Tensor = self.network(batch[0]).argmax(dim=1)
        return guess

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


best = ModelCheckpoint(FOLDER, monitor="val_loss", filename="best")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=SIZE,
    strategy="auto" if WAY == "alone" else DDPStrategy(process_group_backend=WAY),
    callbacks=[best, EarlyStopping("val_loss", patience=1)],
    max_epochs=4,
    gradient_clip_val=0.5,
    use_distributed_sampler=False,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
rank = trainer.global_rank
trainer.fit(model, loader(rank), loader(rank))
found = {name: value.item() for name, value in trainer.callback_metrics.items() if not name.endswith("_step")}
[validated] = trainer.validate(model, loader(rank), verbose=False)
[tested] = trainer.test(ckpt_path="best", dataloaders=loader(rank), verbose=False)
guesses = trainer.predict(model, loader(rank))
assert guesses is not None
right = torch.tensor([(guess == batch[1]).sum() for guess, batch in zip(guesses, loader(rank), strict=True)]).sum()
saved = torch.load(best.best_model_path, weights_only=False)["state_dict"]
tell(
    **{f"trained {name}": value for name, value in found.items()},
    **{f"validated {name}": value for name, value in validated.items()},
    **tested,
    **weights(model.network.named_parameters()),
    **{f"saved {name}": value for name, value in weights(saved.items()).items()},
    right=trainer.strategy.reduce(right.float(), reduce_op="sum").item(),
    stopped_after=trainer.current_epoch,
    prepared=PREPARED.read_text().count("once"),
)
