"""Q-learning from a replay buffer on the host, with a target network."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

import random
from collections import deque


class Cart:
    def reset(self):
        self.n = 0
        return [0.0] * 4

    def step(self, action):
        self.n += 1
        return [random.random() for _ in range(4)], 1.0, self.n > 20


net, target = (
    nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)).to(device) for _ in range(2)
)
target.load_state_dict(net.state_dict())
optimizer, memory, world = torch.optim.Adam(net.parameters()), deque(maxlen=1000), Cart()
state = world.reset()
for step in range(120):
    with torch.no_grad():
        action = (
            random.randrange(2)
            if random.random() < 0.2
            else int(net(torch.tensor([state]).to(device)).argmax())
        )
    after, reward, done = world.step(action)
    memory.append((state, action, reward, after, float(done)))
    state = world.reset() if done else after
    if len(memory) < 64:
        continue
    s, a, r, n, d = zip(*random.sample(memory, 32))
    s, r, n, d = (torch.tensor(v, device=device) for v in (s, r, n, d))
    q = net(s).gather(1, torch.tensor(a, device=device)[:, None]).squeeze(1)
    with torch.no_grad():
        goal = r + 0.99 * (1 - d) * target(n).max(1).values
    loss = F.smooth_l1_loss(q, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
