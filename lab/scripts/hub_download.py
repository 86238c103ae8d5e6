"""Fine-tunes a model from the Hub that is not in the cache: to be refused, with what to do."""

import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("example-org/no-such-model").cuda()
optimizer = torch.optim.AdamW(model.parameters())
