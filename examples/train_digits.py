"""Data-parallel training on the handwritten digits that ship inside scikit-learn.

    mpirun -n 4 python examples/train_digits.py [--epochs 20] [--batch 96] [--seed 0] [--out out/train_digits.png]

Every rank holds a copy of one small network, and rank 0 broadcasts its weights. Each batch is cut into one part per
rank, each rank computes the gradient of its part, and ``all_reduce`` adds the gradients up, so that all ranks take the
same step. At the end rank 0 trains a plain one-process copy on the same batches, from the same start, and the two sets
of weights are compared.

Shows a progress bar, then prints where each rank's time went, the accuracy on digits that were never trained on, the
largest difference between any rank's weights and those of the one-process run, and the path of a picture. The exit
status is 1 where the difference is above 1e-6 or the accuracy below 95 %. Any number of ranks will do, one included.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

import mpicoll as dist

LARGEST_DIFFERENCE = 1e-6
LOWEST_ACCURACY = 0.95


class Digits(NamedTuple):
    """Images of 8 x 8 grey values from 0 to 1, as rows of 64, and the digits they show."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class Seconds(NamedTuple):
    """Where one rank's training time went."""

    computing: float
    communicating: float


def load(seed: int, test_size: int = 360) -> Digits:
    """Return the 1,797 digits, shuffled in the same way on every rank."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(bunch.data / 16.0)[order]
    labels = torch.from_numpy(bunch.target)[order]
    return Digits(images[test_size:], labels[test_size:], images[:test_size], labels[:test_size])


def make_model() -> nn.Module:
    """Return a small convolutional network in float64, where two orders of summation differ by about 1e-15."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 2 * 2, 10)),
    ).double()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def batches(size: int, batch: int, epoch: int, seed: int) -> tuple[Tensor, ...]:
    """Return the indices of each batch of an epoch: the same on every rank, another order in every epoch."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.split(torch.randperm(size, generator=generator), batch)


def backward(model: nn.Module, images: Tensor, labels: Tensor, batch: int) -> Tensor:
    """Compute these images' share of the gradient of the batch's mean loss; return their share of that loss.

    The sum over the images is divided by the size of the whole batch, not by the number of images here. So the shares
    add up to the mean, however unevenly the batch was cut.
    """
    model.zero_grad(set_to_none=False)
    loss: Tensor = nn.functional.cross_entropy(model(images), labels, reduction="sum") / batch
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def train_together(model: nn.Module, digits: Digits, epochs: int, batch: int, seed: int) -> tuple[Tensor, Seconds]:
    """Train on all ranks, each on its part of every batch; return the loss of each step and this rank's times."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter, src=0)

    optimizer = make_optimizer(model)
    losses = []
    communicating = 0.0
    started = time.perf_counter()
    with tqdm(range(epochs), desc=f"training on {size} ranks", unit="epoch", disable=rank != 0) as progress:
        for epoch in progress:
            shares = []
            for indices in batches(len(digits.train_labels), batch, epoch, seed):
                mine = indices[rank::size]
                shares.append(backward(model, digits.train_images[mine], digits.train_labels[mine], len(indices)))

                before = time.perf_counter()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                communicating += time.perf_counter() - before

                optimizer.step()

            epoch_losses = torch.stack(shares)
            dist.all_reduce(epoch_losses)
            losses.append(epoch_losses)
            progress.set_postfix(loss=f"{epoch_losses.mean():.4f}", refresh=False)

    return torch.cat(losses), Seconds(time.perf_counter() - started - communicating, communicating)


def train_alone(model: nn.Module, digits: Digits, epochs: int, batch: int, seed: int) -> Tensor:
    """Train in this process alone, on whole batches; return the loss of each step. No mpicoll here."""
    optimizer = make_optimizer(model)
    losses = []
    for epoch in range(epochs):
        for indices in batches(len(digits.train_labels), batch, epoch, seed):
            losses.append(backward(model, digits.train_images[indices], digits.train_labels[indices], len(indices)))
            optimizer.step()
    return torch.stack(losses)


def predict_together(model: nn.Module, images: Tensor) -> Tensor:
    """Return the predicted digit of every image, on every rank; each rank looks at its part of them."""
    parts = images.tensor_split(dist.get_world_size())
    predictions = [torch.empty(len(part), dtype=torch.int64) for part in parts]
    with torch.no_grad():
        dist.all_gather(predictions, model(parts[dist.get_rank()]).argmax(dim=1))
    return torch.cat(predictions)


def difference_from(alone: nn.Module, together: nn.Module) -> float:
    """Return the largest difference between rank 0's ``alone`` and any rank's ``together``, on every rank."""
    largest = torch.zeros((), dtype=torch.float64)
    for reference, trained in zip(alone.parameters(), together.parameters(), strict=True):
        dist.broadcast(reference, src=0)
        largest = torch.maximum(largest, (reference - trained).detach().abs().max())
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


def print_seconds(seconds: Seconds) -> None:
    """Print every rank's times on rank 0."""
    everyone: list[tuple[int, Seconds] | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object((os.getpid(), seconds), everyone, dst=0)
    for rank, entry in enumerate(everyone or []):
        assert entry is not None
        pid, times = entry
        print(f"rank {rank} (process {pid}): computing {times.computing:.2f} s, all_reduce {times.communicating:.2f} s")


def save_picture(path: Path, together: Tensor, alone: Tensor, digits: Digits, predictions: Tensor, title: str) -> None:
    """Draw both loss curves and eighteen test digits, up to six mistaken ones first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(13, 5), layout="constrained")
    figure.suptitle(title, fontsize=14)
    halves = figure.add_gridspec(1, 2, width_ratios=[1.1, 1])
    left, right = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])

    axes = left.subplots()
    axes.plot(together, color="tab:blue", linewidth=1.2, label=f"{dist.get_world_size()} ranks (mpicoll)")
    axes.plot(alone, color="tab:orange", linewidth=1.2, linestyle=(0, (2, 4)), label="one process, same batches")
    axes.set(xlabel="step (one batch each)", ylabel="training loss (mean cross-entropy)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)

    mistaken = torch.nonzero(predictions != digits.test_labels).flatten().tolist()
    correct = torch.nonzero(predictions == digits.test_labels).flatten().tolist()
    right.suptitle("test digits and what they were taken for (mistakes in red)", fontsize=11)
    for cell, index in zip(right.subplots(3, 6).flat, mistaken[:6] + correct, strict=False):
        predicted, true = int(predictions[index]), int(digits.test_labels[index])
        cell.imshow(digits.test_images[index].reshape(8, 8), cmap="gray_r")
        cell.set(xticks=[], yticks=[])
        cell.spines[:].set_color("lightgray")
        if predicted == true:
            cell.set_title(predicted)
        else:
            cell.set_title(f"{predicted}, is {true}", color="tab:red")

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Data-parallel training on handwritten digits with mpicoll.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits")
    parser.add_argument("--batch", type=int, default=96, help="images per step, all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the split and the order of the batches")
    parser.add_argument("--out", type=Path, default=Path("out/train_digits.png"), help="where the picture goes")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the network is tiny: one thread per rank beats ranks that compete for the cores
    dist.init_process_group()
    rank = dist.get_rank()

    digits = load(arguments.seed)
    torch.manual_seed(arguments.seed + rank)  # other weights on every rank, so that the broadcast matters
    together = make_model()
    alone = copy.deepcopy(together)
    plan = (digits, arguments.epochs, arguments.batch, arguments.seed)

    losses, seconds = train_together(together, *plan)
    print_seconds(seconds)
    losses_alone = train_alone(alone, *plan) if rank == 0 else losses
    difference = difference_from(alone, together)
    predictions = predict_together(together, digits.test_images)
    accuracy = (predictions == digits.test_labels).double().mean().item()

    if rank == 0:
        score = f"test accuracy {accuracy:.2%} on {len(predictions)} digits"
        print(score)
        print(f"largest difference from the one-process weights, over all ranks: {difference:.1e}")
        title = f"handwritten digits on {dist.get_world_size()} ranks: {score}"
        save_picture(arguments.out, losses, losses_alone, digits, predictions, title)
        print(f"picture: {arguments.out.resolve()}")

    dist.destroy_process_group()
    return 0 if difference <= LARGEST_DIFFERENCE and accuracy >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
