"""A BERT from its configuration, in a loop of one's own."""

import torch
from transformers import BertConfig, BertForSequenceClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
config = BertConfig(
    vocab_size=2000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
)
model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
for _ in range(3):
    ids = torch.randint(0, 2000, (8, 32), device=device)
    loss = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        labels=torch.zeros(8, dtype=torch.long, device=device),
    ).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
