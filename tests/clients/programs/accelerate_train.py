"""accelerate's Accelerator: training with accumulated and clipped gradients, a state that is saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.clients.programs.start import BATCH, FOLDER, SIZE, WAY, network, rows, tell, weights

if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()  # before the Accelerator, which takes a group that is there

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed

set_seed(0)
# `python -m mpicoll run --backend mpicoll` says itself that it is for the CPU.
accelerator = Accelerator(cpu=WAY != "gloo", gradient_accumulation_steps=2)
optimizer: Any = torch.optim.SGD((model := network()).parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(rows(), batch_size=BATCH // SIZE)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def epoch() -> list[float]:
    """Train on all rows once; return the norms of the gradients."""
    norms = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(inputs), targets))
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return norms


norms = epoch()
accelerator.save_state(str(Path(FOLDER) / "state"))
once = epoch()
accelerator.load_state(str(Path(FOLDER) / "state"))
assert epoch() == once, "it does not go on from where it was saved"
right = [accelerator.gather_for_metrics((model(inputs).argmax(dim=1) == targets).float()) for inputs, targets in loader]
words = ["from rank 0" if accelerator.is_main_process else None]
broadcast_object_list(words)
tell(
    all_ranks=accelerator.num_processes == SIZE,
    norms=norms + once,
    right=torch.cat(right).sum().item(),
    mean=accelerator.reduce(torch.tensor([1.0, 2.0]), "mean").tolist(),
    words=words == ["from rank 0"],
    objects=len(gather_object([accelerator.process_index])) == SIZE,
    **weights(accelerator.unwrap_model(model).named_parameters()),
)
accelerator.end_training()
