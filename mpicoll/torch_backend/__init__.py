"""The second door: torch.distributed with mpicoll as its backend."""

NAME = "mpicoll"  # the backend's, as torch knows it
