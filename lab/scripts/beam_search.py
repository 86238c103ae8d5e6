"""Beam search of one's own with a small decoder, until all beams have ended or are long enough."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
END, WIDTH, LONGEST = 2, 4, 24
embed = nn.Embedding(1000, 128).to(device)
decoder = nn.GRU(128, 256, batch_first=True).to(device)
head = nn.Linear(256, 1000).to(device)


@torch.no_grad()
def search(state):
    tokens = torch.zeros(WIDTH, 1, dtype=torch.long, device=device)
    scores = torch.full((WIDTH,), float("-inf"), device=device)
    scores[0] = 0.0
    ended = torch.zeros(WIDTH, dtype=torch.bool, device=device)
    while not ended.all():
        out, state = decoder(embed(tokens[:, -1:]), state)
        log = head(out[:, -1]).log_softmax(-1).masked_fill(ended[:, None], 0.0)
        scores, best = (scores[:, None] + log).flatten().topk(WIDTH)
        beam, token = best // 1000, best % 1000
        tokens = torch.cat([tokens[beam], token[:, None]], 1)
        state = state[:, beam]
        ended = ended[beam] | (token == END) | torch.tensor(tokens.shape[1] >= LONGEST).to(device)
    return tokens[scores.argmax()]


for _ in range(3):
    print(search(torch.zeros(1, WIDTH, 256, device=device)).shape)
