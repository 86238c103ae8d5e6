"""The shape of CleanRL's ppo.py: environments on the CPU, rollouts without gradients."""

import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

num_envs, num_steps, minibatches, update_epochs = 8, 64, 4, 4
seed = 1
random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CartPoles:
    """As many environments as gymnasium's vector of CartPole has."""

    def reset(self):
        return np.zeros((num_envs, 4), dtype=np.float32)

    def step(self, actions):
        assert actions.shape == (num_envs,) and actions.max() < 2
        state = np.random.randn(num_envs, 4).astype(np.float32)
        return state, np.ones(num_envs, dtype=np.float32), np.random.rand(num_envs) < 0.05


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()

        def tower(out, std):
            return nn.Sequential(
                layer_init(nn.Linear(4, 64)),
                nn.Tanh(),
                layer_init(nn.Linear(64, 64)),
                nn.Tanh(),
                layer_init(nn.Linear(64, out), std=std),
            )

        self.critic = tower(1, 1.0)
        self.actor = tower(2, 0.01)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


envs = CartPoles()
agent = Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4)).to(device)
actions, logprobs, rewards, dones, values = (
    torch.zeros((num_steps, num_envs)).to(device) for _ in range(5)
)
start_time = time.time()
next_obs = torch.Tensor(envs.reset()).to(device)
next_done = torch.zeros(num_envs).to(device)

for iteration in range(1, 100):
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        state, reward, done = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(state).to(device), torch.Tensor(done).to(device)

    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            last = t == num_steps - 1
            nonterminal = 1.0 - (next_done if last else dones[t + 1])
            following = next_value if last else values[t + 1]
            delta = rewards[t] + 0.99 * following * nonterminal - values[t]
            advantages[t] = lastgaelam = delta + 0.99 * 0.95 * nonterminal * lastgaelam
        returns = advantages + values

    b_obs, b_logprobs, b_actions = obs.reshape(-1, 4), logprobs.reshape(-1), actions.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(num_envs * num_steps)
    size = len(b_inds) // minibatches
    for epoch in range(update_epochs):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), size):
            mb = b_inds[start : start + size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[mb], b_actions.long()[mb]
            )
            ratio = (newlogprob - b_logprobs[mb]).exp()
            advantage = b_advantages[mb]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            pg_loss = torch.max(
                -advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)
            ).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    y_pred, y_true = values.reshape(-1).cpu().numpy(), b_returns.cpu().numpy()
    print(
        "SPS:",
        int(iteration * num_steps * num_envs / (time.time() - start_time)),
        np.var(y_true - y_pred),
    )
