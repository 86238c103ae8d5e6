"""Direct preference optimisation: a policy and its frozen copy."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

import copy


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = (
            nn.Embedding(2000, 128),
            nn.GRU(128, 128, batch_first=True),
            nn.Linear(128, 2000),
        )

    def forward(self, ids):
        return self.head(self.body(self.embed(ids))[0])


def logp(model, ids):
    return model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2).sum(1)


policy = LM().to(device)
reference = copy.deepcopy(policy).eval()
optimizer = torch.optim.RMSprop(policy.parameters(), 1e-5)
for _ in range(3):
    good, bad = (
        torch.randint(0, 2000, (4, 24), device=device),
        torch.randint(0, 2000, (4, 24), device=device),
    )
    with torch.no_grad():
        base = logp(reference, good) - logp(reference, bad)
    loss = -F.logsigmoid(0.1 * (logp(policy, good) - logp(policy, bad) - base)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
