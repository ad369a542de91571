"""PPO on a made-up pixel game: rollouts without gradients, then several passes over shuffled
minibatches; the policy returns a distribution.
"""

# tiny: --envs 4 --horizon 8 --minibatches 2 --side 36 --width 4
import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Impala(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.res = nn.ModuleList(
            [
                nn.Sequential(
                    nn.ReLU(),
                    nn.Conv2d(c_out, c_out, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(c_out, c_out, 3, padding=1),
                )
                for _ in range(2)
            ]
        )

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x), 3, 2, 1)
        for r in self.res:
            x = x + r(x)
        return x


class Agent(nn.Module):
    def __init__(self, actions, side, w):
        super().__init__()
        feat = 2 * w * ((side + 7) // 8) ** 2
        self.network = nn.Sequential(
            Impala(4, w),
            Impala(w, 2 * w),
            Impala(2 * w, 2 * w),
            nn.Flatten(),
            nn.ReLU(),
            layer_init(nn.Linear(feat, 256)),
            nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(256, actions), std=0.01)
        self.critic = layer_init(nn.Linear(256, 1), std=1)

    def get_value(self, x):
        return self.critic(self.network(x / 255.0))

    def forward(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


class Game:
    """The frame moves by the action; the reward is its brightness in the middle."""

    def __init__(self, envs, side, device):
        g = torch.Generator().manual_seed(3)
        self.frames = torch.randint(0, 255, (envs, 4, side, side), generator=g).float().to(device)

    def step(self, action):
        shifted = torch.stack([torch.roll(f, int(a) - 2, -1) for f, a in zip(self.frames, action)])
        self.frames = shifted
        mid = shifted.shape[-1] // 2
        return shifted, shifted[:, :, mid - 2 : mid + 2, mid - 2 : mid + 2].mean((1, 2, 3)) / 255.0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--envs", type=int, default=32)
    p.add_argument("--horizon", type=int, default=64)
    p.add_argument("--side", type=int, default=84)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--minibatches", type=int, default=2)
    p.add_argument("--updates", type=int, default=5)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lr", type=float, default=2.5e-4)
    args = p.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    game, agent = Game(args.envs, args.side, device), Agent(5, args.side, args.width).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    obs, n = game.frames, 0
    for update in range(args.updates):
        optimizer.param_groups[0]["lr"] = (1 - update / args.updates) * args.lr
        store = {k: [] for k in ("obs", "act", "logp", "rew", "val")}
        for _ in range(args.horizon):
            with torch.no_grad():
                action, logp, _, value = agent(obs)
            (
                store["obs"].append(obs),
                store["act"].append(action),
                store["logp"].append(logp),
                store["val"].append(value.flatten()),
            )
            obs, reward = game.step(action.cpu())
            store["rew"].append(reward)
        with torch.no_grad():
            running, returns = agent.get_value(obs).flatten(), []
            for r in reversed(store["rew"]):
                running = r + args.gamma * running
                returns.insert(0, running)
        b_obs, b_act, b_logp, b_val = (torch.cat(store[k]) for k in ("obs", "act", "logp", "val"))
        b_ret = torch.cat(returns)
        b_adv = b_ret - b_val
        size = len(b_obs) // args.minibatches
        for _ in range(args.epochs):
            order = torch.randperm(len(b_obs)).to(device)
            for start in range(0, len(b_obs), size):
                mb = order[start : start + size]
                _, newlogp, entropy, newval = agent(b_obs[mb], b_act[mb])
                ratio = (newlogp - b_logp[mb]).exp()
                adv = (b_adv[mb] - b_adv[mb].mean()) / (b_adv[mb].std() + 1e-8)
                pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                v_loss = 0.5 * (newval.flatten() - b_ret[mb]).pow(2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                print(f"step {n} loss {loss.item():.6f}", flush=True)
                n += 1


if __name__ == "__main__":
    main()
