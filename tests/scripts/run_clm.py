"""The shape of transformers' run_clm_no_trainer.py: accelerate, gradient accumulation, GPT-2 from
its configuration, a learning-rate schedule."""

import argparse
import json
import math
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator, get_scheduler

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=4)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--block_size", type=int, default=64)
parser.add_argument("--output_dir", default="out/clm")
args = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
set_seed(0)
if accelerator.is_main_process:
    os.makedirs(args.output_dir, exist_ok=True)
accelerator.wait_for_everyone()
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=1000, n_positions=128, n_embd=64, n_layer=2, n_head=4)
)
model.resize_token_embeddings(1024)
blocks = [[(i * 3 + j) % 1000 for j in range(args.block_size)] for i in range(256)]
dataset = [{"input_ids": b, "labels": b, "attention_mask": [1] * len(b)} for b in blocks]
loader = DataLoader(
    dataset,
    shuffle=True,
    collate_fn=default_data_collator,
    batch_size=args.per_device_train_batch_size,
)
no_decay = ["bias", "layer_norm.weight"]
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not any(x in n for x in no_decay)],
        "weight_decay": 0.1,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(x in n for x in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(groups, lr=5e-5)
updates = math.ceil(len(loader) / args.gradient_accumulation_steps)
schedule = get_scheduler(
    "linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=3 * updates
)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
completed = 0
for epoch in range(3):
    model.train()
    total_loss = 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            if completed % 100 == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{completed}"))
    accelerator.print(epoch, math.exp(min(total_loss.item() / len(loader), 20)))
accelerator.unwrap_model(model).save_pretrained(args.output_dir)
with open(os.path.join(args.output_dir, "all_results.json"), "w") as file:
    json.dump({"steps": completed}, file)
