"""A character LSTM whose hidden state is carried on, in a cosine schedule."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

text = "the quick brown fox jumps over the lazy dog. " * 200
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(len(chars), 64),
            nn.LSTM(64, 256, 2, dropout=0.5),
            nn.Linear(256, len(chars)),
        )

    def forward(self, x, hidden):
        out, hidden = self.lstm(self.embed(x), hidden)
        return self.head(out), hidden


model = RNN().to(device)
optimizer = torch.optim.Adam(model.parameters())
data = ids[: len(ids) // 16 * 16].view(16, -1).t().contiguous()
hidden = None
for at in range(0, 200, 35):
    x, y = data[at : at + 35].to(device), data[at + 1 : at + 36].to(device)
    out, hidden = model(x, hidden)
    hidden = tuple(h.detach() for h in hidden)
    loss = F.cross_entropy(out.view(-1, len(chars)), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
