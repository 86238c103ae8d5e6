"""The shape of DLRM: EmbeddingBags with sparse gradients, two MLPs, dot products between them."""

import sys

import torch
import torch.nn as nn
from torch.nn.parameter import Parameter

rows, width, batch = [20000, 5000, 300], 32, 128
sparse = "--dense" not in sys.argv
use_gpu = torch.cuda.is_available()
device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList()
        for n in rows:
            bag = nn.EmbeddingBag(n, width, mode="sum", sparse=sparse)
            bag.weight.data = torch.empty(n, width).uniform_(-0.05, 0.05)
            bag.weight.requires_grad = True
            self.emb_l.append(bag)
        self.bot_l = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top_l = nn.Sequential(
            nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid()
        )
        self.bot_l[0].weight = Parameter(torch.randn(64, 13), requires_grad=True)

    def interact_features(self, x, ly):
        n, d = x.shape
        T = torch.cat([x, *ly], dim=1).view((n, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x, Z[:, li, lj]], dim=1)

    def forward(self, dense, offsets, indices):
        x = self.bot_l(dense)
        ly = [bag(i, o) for bag, i, o in zip(self.emb_l, indices, offsets)]
        return self.top_l(self.interact_features(x, ly))


def batches():
    while True:
        offsets = torch.stack([torch.arange(0, batch * 4, 4) for _ in rows])
        indices = [torch.randint(0, n, (batch * 4,)) for n in rows]
        yield torch.rand(batch, 13), offsets, indices, torch.rand(batch, 1).round()


dlrm = DLRM().to(device)
loss_fn = nn.BCELoss(reduction="mean")
optimizer = torch.optim.SGD(dlrm.parameters(), lr=0.1)
for i, (X, lS_o, lS_i, T) in enumerate(batches()):
    Z = dlrm(X.to(device), lS_o.to(device), [index.to(device) for index in lS_i])
    E = loss_fn(Z, T.to(device))
    optimizer.zero_grad()
    E.backward()
    optimizer.step()
    print(i, E.detach().cpu().numpy(), (torch.round(Z.detach().cpu()) == T).float().mean())
