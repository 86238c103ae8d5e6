"""Generates token by token with a cache of keys and values."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = (
            p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(out.transpose(1, 2).flatten(2)), (k, v)


embed, layers, head = (
    nn.Embedding(2000, 256).to(device),
    nn.ModuleList([Attention() for _ in range(2)]).to(device),
    nn.Linear(256, 2000).to(device),
)
with torch.no_grad():
    ids = torch.randint(0, 2000, (4, 32), device=device)
    caches, text = [None, None], [ids]
    for _ in range(16):
        x = embed(ids)
        for number, layer in enumerate(layers):
            more, caches[number] = layer(x, caches[number])
            x = x + more
        ids = torch.multinomial(head(x[:, -1]).softmax(-1), 1)
        text.append(ids)
print(torch.cat(text, 1).tolist()[0][:5])
