"""A2C with a recurrent policy on a batch of toy environments (everything on one device)."""

import os

import torch
import torch.nn as nn
from torch.distributions import Categorical

SMALL = os.environ.get("TINY") == "1"
N_ENVS = 8 if SMALL else 3072
N_STEPS = 6 if SMALL else 48
OBS = 8 if SMALL else 128
ACTIONS = 4 if SMALL else 18
HIDDEN = 16 if SMALL else 640
UPDATES = 20
GAMMA, LAM, ENT, VF = 0.99, 0.95, 0.01, 0.5
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ChaseEnv:
    """State drifts, the right action (a hidden linear function of the state) pays 1."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(13)
        self.rule = torch.randn(OBS, ACTIONS, generator=g).to(dev)
        self.state = torch.randn(n, OBS, generator=g).to(dev)
        self.age = torch.zeros(n, device=dev)

    def step(self, action):
        best = (self.state @ self.rule).argmax(-1)
        reward = (action == best).float()
        self.age += 1
        done = (self.age > 20) & (torch.rand_like(self.age) < 0.2)
        self.state = 0.9 * self.state + 0.4 * torch.randn_like(self.state)
        self.state[done] = torch.randn(int(done.sum()), OBS, device=dev)
        self.age[done] = 0
        return self.state.clone(), reward, done.float()


class RecurrentPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()
        )
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.pi = nn.Linear(HIDDEN, ACTIONS)
        self.v = nn.Linear(HIDDEN, 1)

    def forward(self, obs, state, done):
        h, c = state
        keep = (1.0 - done).unsqueeze(1)
        h, c = self.cell(self.body(obs), (h * keep, c * keep))
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1), (h, c)


def gae(rewards, values, dones, last_value):
    adv = torch.zeros_like(rewards)
    run = torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        nxt = last_value if t == len(rewards) - 1 else values[t + 1]
        alive = 1.0 - dones[t]
        delta = rewards[t] + GAMMA * nxt * alive - values[t]
        run = delta + GAMMA * LAM * alive * run
        adv[t] = run
    return adv


def main():
    torch.manual_seed(8)
    env = ChaseEnv(N_ENVS)
    policy = RecurrentPolicy().to(dev)
    opt = torch.optim.RMSprop(policy.parameters(), lr=7e-4, eps=1e-5, alpha=0.99)
    obs = env.state.clone()
    done = torch.zeros(N_ENVS, device=dev)
    state = (torch.zeros(N_ENVS, HIDDEN, device=dev), torch.zeros(N_ENVS, HIDDEN, device=dev))
    for update in range(UPDATES):
        state = tuple(s.detach() for s in state)
        logps, values, rewards, dones, ents = [], [], [], [], []
        for _ in range(N_STEPS):
            dist, value, state = policy(obs, state, done)
            action = dist.sample()
            obs, reward, done = env.step(action)
            logps.append(dist.log_prob(action))
            ents.append(dist.entropy())
            values.append(value)
            rewards.append(reward)
            dones.append(done)
        with torch.no_grad():
            _, last_value, _ = policy(obs, state, done)
        logps, values, ents = torch.stack(logps), torch.stack(values), torch.stack(ents)
        rewards, dones = torch.stack(rewards), torch.stack(dones)
        adv = gae(rewards, values.detach(), dones, last_value)
        returns = adv + values.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg_loss = -(adv * logps).mean()
        v_loss = (returns - values).pow(2).mean()
        loss = pg_loss + VF * v_loss - ENT * ents.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        print(
            f"step {update} loss {loss.item():.9f} reward {rewards.mean().item():.4f}", flush=True
        )


if __name__ == "__main__":
    main()
