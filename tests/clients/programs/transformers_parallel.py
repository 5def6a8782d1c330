"""transformers' tensor parallel models: `from_pretrained(..., tp_plan="auto")` of a tiny Llama, saved before."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.clients.programs.start import FOLDER, WAY, tell, whole

if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, set_seed

set_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
saved = Path(FOLDER) / "llama"
if WAY == "alone" or dist.get_rank() == 0:
    LlamaForCausalLM(config).save_pretrained(saved)
if WAY != "alone":
    dist.barrier()
model = AutoModelForCausalLM.from_pretrained(saved, tp_plan=None if WAY == "alone" else "auto")
tokens = torch.arange(16).reshape(2, 8)
answer = model(tokens, labels=tokens)
answer.loss.backward()
query = model.model.layers[0].self_attn.q_proj.weight
tell(
    in_parts=WAY == "alone" or isinstance(query, DTensor),
    loss=answer.loss.item(),
    scores=answer.logits.flatten()[::31].tolist(),
    gradient=whole(query.grad).flatten()[::31].tolist(),
    goes_on_with=model.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0).flatten().tolist(),
)
