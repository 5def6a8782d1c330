"""transformers' Trainer on a tiny GPT-2 made from a config: train, save, load the best one, evaluate, predict."""

from __future__ import annotations

from typing import Any

import torch

from tests.clients.programs.start import BATCH, FOLDER, SIZE, WAY, tell, weights

if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()  # before TrainingArguments, which take a group that is there

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
config = GPT2Config(
    vocab_size=50,
    n_positions=8,
    n_embd=16,
    n_layer=2,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
tokens = torch.randint(0, 50, (64, 8), generator=torch.Generator().manual_seed(1))
sentences = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    FOLDER,
    use_cpu=WAY != "gloo",  # `python -m mpicoll run --backend mpicoll` says so itself
    per_device_train_batch_size=BATCH // SIZE,
    per_device_eval_batch_size=BATCH // SIZE,
    num_train_epochs=2,
    gradient_accumulation_steps=2,
    learning_rate=0.01,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    logging_steps=2,
    report_to=[],
    disable_tqdm=True,
)


def share_of_right(prediction: Any) -> dict[str, float]:
    return {"right": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


trainer = Trainer(model, arguments, train_dataset=sentences, eval_dataset=sentences, compute_metrics=share_of_right)
trainer.train()
evaluated = trainer.evaluate()
predicted = trainer.predict(sentences)
steps = [entry for entry in trainer.state.log_history if "loss" in entry]
tell(
    all_ranks=arguments.world_size == SIZE,
    losses=[entry["loss"] for entry in steps],
    norms=[entry["grad_norm"] for entry in steps],
    eval_loss=evaluated["eval_loss"],
    eval_right=evaluated["eval_right"],
    predictions=predicted.predictions.ravel()[::97].tolist(),
    **weights(trainer.model.named_parameters()),
)
