"""Greedy generation with a GPT-2 from its configuration."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
model = (
    GPT2LMHeadModel(GPT2Config(vocab_size=2000, n_embd=128, n_layer=2, n_head=4)).to(device).eval()
)
ids = torch.randint(0, 2000, (2, 16), device=device)
with torch.no_grad():
    out = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
print(out.shape)
