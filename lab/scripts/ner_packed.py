"""A tagger over packed sequences of unequal length."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

embed, lstm, head = (
    nn.Embedding(2000, 64).to(device),
    nn.LSTM(64, 64, bidirectional=True, batch_first=True).to(device),
    nn.Linear(128, 9).to(device),
)
optimizer = torch.optim.SGD([*embed.parameters(), *lstm.parameters(), *head.parameters()], 0.1)
for _ in range(3):
    sentences = [torch.randint(0, 2000, (n,)) for n in (14, 9, 9, 4)]
    lengths = torch.tensor([len(one) for one in sentences])
    x = pad_sequence(sentences, batch_first=True).to(device)
    packed = pack_padded_sequence(embed(x), lengths, batch_first=True)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    loss = F.cross_entropy(head(out).flatten(0, 1), torch.randint(0, 9, (4 * 14,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
