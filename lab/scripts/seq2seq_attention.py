"""Encoder, decoder, additive attention and teacher forcing, word by word."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

import random

encoder_in, decoder_in = nn.Embedding(1000, 128).to(device), nn.Embedding(1000, 128).to(device)
encoder, decoder = nn.GRU(128, 128, batch_first=True).to(device), nn.GRUCell(256, 128).to(device)
score, head = nn.Linear(256, 1).to(device), nn.Linear(128, 1000).to(device)
parts = nn.ModuleList([encoder_in, decoder_in, encoder, decoder, score, head])
optimizer = torch.optim.Adam(parts.parameters())
for _ in range(3):
    source, target = (
        torch.randint(0, 1000, (16, 12), device=device),
        torch.randint(0, 1000, (16, 8), device=device),
    )
    states, last = encoder(encoder_in(source))
    h, word, loss = last[0], target[:, 0], 0
    for t in range(1, 8):
        weights = score(torch.cat([states, h[:, None].expand_as(states)], -1)).softmax(1)
        h = decoder(torch.cat([decoder_in(word), (weights * states).sum(1)], -1), h)
        out = head(h)
        loss = loss + F.cross_entropy(out, target[:, t])
        word = target[:, t] if random.random() < 0.5 else out.argmax(1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
