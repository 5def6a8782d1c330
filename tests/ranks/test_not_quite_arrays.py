"""Arrays that look plain and are not: right, or refused with the reason; never taken for what they are not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest


def test_fields_out_of_order_move(dist: ModuleType, rank: int) -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [4, 0]})
    x = np.zeros(3, dtype)
    if rank == 0:
        x["a"], x["b"] = [1, 2, 3], [0.5, 1.5, 2.5]
    dist.broadcast(x, src=0)
    assert x["a"].tolist() == [1, 2, 3]
    assert x["b"].tolist() == [0.5, 1.5, 2.5]


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "dtype",
    [
        {"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [4, 0]},
        [(f"field{i}", "i4") for i in range(300)],
        [("when", "M8[ns]"), ("where", "f4", (3,))],
    ],
    ids=["out of order", "many", "nested"],
)
def test_a_structure_arrives_as_it_is(dist: ModuleType, rank: int, dtype: Any) -> None:
    if rank == 0:
        dist.send(np.zeros(2, dtype), dst=1)
    else:
        assert dist.recv_tensor(src=0).dtype == np.dtype(dtype)


def test_a_mask_is_not_passed_over(dist: ModuleType) -> None:
    with pytest.raises(dist.DTypeError, match=r"MaskedArray.*filled"):
        dist.all_reduce(np.ma.masked_array(np.ones(3), [True, False, False]))


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_made_of_tensors_has_no_memory(dist: ModuleType, dtype: str) -> None:
    import torch
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.ones(3, dtype=getattr(torch, dtype))
    with pytest.raises(dist.DTypeError, match="TwoTensor"):
        dist.all_reduce(TwoTensor(x, x.clone()))  # type: ignore[no-untyped-call]
