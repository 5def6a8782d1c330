"""torchmetrics: states that are added, averaged, gathered, merged by a rule of their own; ranks with unequal shares."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torch import Tensor

from tests.clients.programs.start import WAY, tell

rank, size = 0, 1
if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()
    rank, size = mpicoll.get_rank(), mpicoll.get_world_size()

ROWS, CLASSES = 37, 5
generator = torch.Generator().manual_seed(0)
chances = torch.rand(ROWS, CLASSES, generator=generator).softmax(dim=1)
classes = torch.randint(0, CLASSES, (ROWS,), generator=generator)
numbers = torch.randn(ROWS, generator=generator)
others = numbers + torch.randn(ROWS, generator=generator)
images, noisy = torch.rand(2, ROWS, 1, 16, 16, generator=generator)
queries = torch.arange(ROWS) // 6
words = [f"word{row} end{row % 3}" for row in range(ROWS)]
wrong = [f"word{row} end{row % 4}" for row in range(ROWS)]

many: dict[str, Any] = {"task": "multiclass", "num_classes": CLASSES}
METRICS: dict[str, tuple[torchmetrics.Metric, tuple[Any, ...]]] = {
    "accuracy": (torchmetrics.Accuracy(**many), (chances, classes)),
    "area under the curve": (torchmetrics.AUROC(**many), (chances, classes)),
    "calibration": (torchmetrics.CalibrationError(**many), (chances, classes)),
    "confusion": (torchmetrics.ConfusionMatrix(**many), (chances, classes)),
    "F1": (torchmetrics.F1Score(average="macro", **many), (chances, classes)),
    "all values": (torchmetrics.CatMetric(), (numbers,)),
    "correlation": (torchmetrics.PearsonCorrCoef(), (numbers, others)),
    "error": (torchmetrics.MeanSquaredError(), (numbers, others)),
    "largest": (torchmetrics.MaxMetric(), (numbers,)),
    "mean": (torchmetrics.MeanMetric(), (numbers,)),
    "mean in each step": (torchmetrics.MeanMetric(dist_sync_on_step=True), (numbers,)),
    "rank correlation": (torchmetrics.SpearmanCorrCoef(), (numbers, others)),
    "smallest": (torchmetrics.MinMetric(), (numbers,)),
    "retrieval": (torchmetrics.retrieval.RetrievalMAP(), (numbers.sigmoid(), others > 0, queries)),
    "similar images": (torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0), (images, noisy)),
    "words": (torchmetrics.text.WordErrorRate(), (words, wrong)),
}
mine = slice(0, ROWS) if size == 1 else [slice(0, 14), slice(14, ROWS)][rank]
found: dict[str, Any] = {}
for name, (metric, arguments) in METRICS.items():
    shares = [argument[mine] for argument in arguments]
    step = metric(*shares[:2], indexes=shares[2]) if name == "retrieval" else metric(*shares)
    result: Tensor = metric.compute()
    found[name] = result.double().flatten().tolist()
    if name == "mean in each step":
        found["that step"] = step.item()

together = torchmetrics.MetricCollection([torchmetrics.Precision(**many), torchmetrics.Recall(**many)])
together.update(chances[mine], classes[mine])
found |= {name: value.item() for name, value in together.compute().items()}

lonely = torchmetrics.CatMetric()
if rank == 0:  # the other rank has nothing
    lonely.update(numbers[:3])
found["lonely"] = lonely.compute().tolist()
tell(**found)
