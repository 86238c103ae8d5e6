"""Policy gradients: an episode, returns, one step."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

policy = nn.Sequential(
    nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2), nn.Softmax(-1)
).to(device)
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
for episode in range(4):
    logps, rewards = [], []
    for _ in range(10):
        choice = torch.distributions.Categorical(policy(torch.randn(1, 4).to(device)))
        action = choice.sample()
        logps.append(choice.log_prob(action))
        rewards.append(float(action.item()))
    returns = torch.tensor([sum(rewards[i:]) for i in range(10)], device=device)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.cat(logps) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
