# PPO (cleanrl flavoured, single file) on a toy vectorised pixel environment
import os
import random
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical

small = os.environ.get("SMALL") == "1"
args = SimpleNamespace(
    seed=1,
    num_envs=4 if small else 64,
    num_steps=8 if small else 96,
    obs=20 if small else 84,
    channels=(4, 8) if small else (16, 32, 32),
    num_minibatches=2,
    update_epochs=2,
    num_updates=4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_coef=0.1,
    ent_coef=0.01,
    vf_coef=0.5,
    max_grad_norm=0.5,
    lr=2.5e-4,
)
args.batch_size = args.num_envs * args.num_steps
args.minibatch_size = args.batch_size // args.num_minibatches


class ChaseEnv:
    """A bright square must be reached; 4 moves; reward = decrease of L1 distance."""

    def __init__(self, n, size, device):
        self.n, self.size, self.device = n, size, device
        self.g = torch.Generator().manual_seed(9)
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
        self.reset()

    def _place(self, n):
        return torch.randint(4, self.size - 4, (n, 2), generator=self.g)

    def reset(self):
        self.me, self.goal = self._place(self.n), self._place(self.n)
        self.frames = torch.zeros(self.n, 4, self.size, self.size, dtype=torch.uint8)
        return self._render()

    def _render(self):
        frame = torch.zeros(self.n, self.size, self.size, dtype=torch.uint8)
        for i in range(self.n):
            (y, x), (v, u) = self.me[i].tolist(), self.goal[i].tolist()
            frame[i, v - 2 : v + 3, u - 2 : u + 3] = 120
            frame[i, y - 2 : y + 3, x - 2 : x + 3] = 255
        self.frames = torch.cat([self.frames[:, 1:], frame[:, None]], 1)
        return self.frames.to(self.device)

    def step(self, action):
        before = (self.me - self.goal).abs().sum(1)
        self.me = (self.me + 3 * self.moves[action.cpu()]).clamp(3, self.size - 4)
        after = (self.me - self.goal).abs().sum(1)
        done = after < 4
        reward = (before - after).float() / 3 + 5.0 * done.float()
        fresh = self._place(self.n)
        self.goal = torch.where(done[:, None], fresh, self.goal)
        return self._render(), reward.to(self.device), done.float().to(self.device)


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        h = self.conv0(nn.functional.relu(x))
        return x + self.conv1(nn.functional.relu(h))


class Agent(nn.Module):
    def __init__(self, channels, size, n_actions=4):
        super().__init__()
        layers, cin = [], 4
        for c in channels:
            layers += [
                nn.Conv2d(cin, c, 3, padding=1),
                nn.MaxPool2d(3, 2, 1),
                ResidualBlock(c),
                ResidualBlock(c),
            ]
            cin, size = c, (size + 1) // 2
        layers += [nn.Flatten(), nn.ReLU(), nn.Linear(cin * size * size, 256), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.actor, self.critic = nn.Linear(256, n_actions), nn.Linear(256, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.orthogonal_(self.critic.weight, 1.0)

    def get_value(self, x):
        return self.critic(self.network(x.float() / 255.0))

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x.float() / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


if __name__ == "__main__":
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs = ChaseEnv(args.num_envs, args.obs, device)
    agent = Agent(args.channels, args.obs).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(shape + (4, args.obs, args.obs), dtype=torch.uint8, device=device)
    actions = torch.zeros(shape, dtype=torch.long, device=device)
    logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(4))
    next_obs, next_done = envs.reset(), torch.zeros(args.num_envs, device=device)
    global_step = 0

    for update in range(args.num_updates):
        optimizer.param_groups[0]["lr"] = (1.0 - update / args.num_updates) * args.lr
        for t in range(args.num_steps):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[t] = value.flatten()
            actions[t], logprobs[t] = action, logprob
            next_obs, rewards[t], next_done = envs.step(action)

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages, lastgaelam = torch.zeros_like(rewards), 0
            for t in reversed(range(args.num_steps)):
                last = t == args.num_steps - 1
                nonterminal = 1.0 - (next_done if last else dones[t + 1])
                nextvalues = next_value if last else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nonterminal - values[t]
                advantages[t] = lastgaelam = (
                    delta + args.gamma * args.gae_lambda * nonterminal * lastgaelam
                )
            returns = advantages + values

        b_obs = obs.reshape((-1,) + obs.shape[2:])
        b_logprobs, b_actions = logprobs.reshape(-1), actions.reshape(-1)
        b_adv, b_returns, b_values = advantages.reshape(-1), returns.reshape(-1), values.reshape(-1)
        for epoch in range(args.update_epochs):
            b_inds = torch.randperm(args.batch_size, device=device)
            for start in range(0, args.batch_size, args.minibatch_size):
                mb = b_inds[start : start + args.minibatch_size]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = b_adv[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(
                    -adv * ratio, -adv * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                ).mean()
                newvalue = newvalue.view(-1)
                v_clipped = b_values[mb] + (newvalue - b_values[mb]).clamp(
                    -args.clip_coef, args.clip_coef
                )
                v_loss = (
                    0.5
                    * torch.max(
                        (newvalue - b_returns[mb]) ** 2, (v_clipped - b_returns[mb]) ** 2
                    ).mean()
                )
                loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                print(
                    f"step {global_step} loss {loss.item():.6f} pg {pg_loss.item():.6f} v {v_loss.item():.6f}"  # noqa: E501
                )
                global_step += 1
