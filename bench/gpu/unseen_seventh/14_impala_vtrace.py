"""IMPALA learner: deep residual torso + LSTM core, V-trace targets, rollouts from a queue."""

import collections
import types

import torch
from torch import nn
from torch.nn import functional as F

CUDA = torch.cuda.is_available()

flags = types.SimpleNamespace(
    unroll_length=50 if CUDA else 5,
    batch_size=48 if CUDA else 2,
    frame=(4, 84, 84) if CUDA else (4, 32, 32),
    num_actions=15,
    learner_steps=8 if CUDA else 3,
    discounting=0.99,
    baseline_cost=0.5,
    entropy_cost=0.01,
    learning_rate=2e-4,
    grad_norm_clipping=10.0,
    device="cuda" if CUDA else "cpu",
    seed=3,
)
VTrace = collections.namedtuple("VTrace", "vs pg_advantages")


class ResTower(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.entry = nn.Conv2d(cin, cout, 3, padding=1)
        self.res = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(cout, cout, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(cout, cout, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, x):
        x = F.max_pool2d(self.entry(x), 3, stride=2, padding=1)
        for block in self.res:
            x = x + block(x)
        return x


class Net(nn.Module):
    def __init__(self, frame, num_actions):
        super().__init__()
        self.num_actions = num_actions
        self.towers = nn.Sequential(ResTower(frame[0], 16), ResTower(16, 32), ResTower(32, 32))
        with torch.no_grad():
            flat = self.towers(torch.zeros(1, *frame)).numel()
        self.fc = nn.Linear(flat, 256)
        self.core = nn.LSTMCell(256 + num_actions + 1, 256)
        self.policy, self.baseline = nn.Linear(256, num_actions), nn.Linear(256, 1)

    def forward(self, batch):
        t, b = batch["frame"].shape[:2]
        x = self.towers(batch["frame"].flatten(0, 1).float() / 255.0)
        x = F.relu(self.fc(F.relu(x).flatten(1)))
        last = F.one_hot(batch["last_action"].flatten(), self.num_actions).float()
        x = torch.cat([x, last, batch["reward"].clamp(-1, 1).view(t * b, 1)], -1).view(t, b, -1)
        h = c = x.new_zeros(b, 256)
        outs = []
        for step, notdone in zip(x, (~batch["done"]).float()):
            h, c = h * notdone[:, None], c * notdone[:, None]
            h, c = self.core(step, (h, c))
            outs.append(h)
        out = torch.stack(outs)
        return self.policy(out), self.baseline(out).squeeze(-1)


@torch.no_grad()
def vtrace(log_rhos, discounts, rewards, values, bootstrap):
    rhos = log_rhos.exp().clamp(max=1.0)
    nxt = torch.cat([values[1:], bootstrap[None]])
    deltas = rhos * (rewards + discounts * nxt - values)
    acc, result = torch.zeros_like(bootstrap), []
    for t in reversed(range(len(deltas))):
        acc = deltas[t] + discounts[t] * rhos[t] * acc
        result.append(acc)
    vs = torch.stack(result[::-1]) + values
    nxt_vs = torch.cat([vs[1:], bootstrap[None]])
    return VTrace(vs, rhos * (rewards + discounts * nxt_vs - values))


def rollout_queue(f):
    """What the actors would have sent: uint8 frames with a reward that depends on them."""
    g = torch.Generator().manual_seed(f.seed)
    shape = (f.unroll_length + 1, f.batch_size)
    for _ in range(f.learner_steps):
        coarse = torch.randint(0, 256, (*shape, *f.frame), generator=g, dtype=torch.uint8)
        action = torch.randint(0, f.num_actions, shape, generator=g)
        bright = torch.rand(shape, generator=g)
        frame = (coarse.float() * bright[..., None, None, None]).to(torch.uint8)
        yield {
            "frame": frame,
            "action": action,
            "last_action": action.roll(1, 0),
            "reward": (bright > 0.5).float() + 0.1 * torch.randn(shape, generator=g),
            "done": torch.rand(shape, generator=g) < 0.02,
            "behavior": 0.1 * torch.randn(*shape, f.num_actions, generator=g),
        }


def learn(f, model, optimizer, scheduler, batch):
    batch = {k: v.to(f.device) for k, v in batch.items()}
    logits, values = model(batch)
    bootstrap, values, logits = values[-1].detach(), values[:-1], logits[:-1]
    logp = F.log_softmax(logits, -1)
    taken = logp.gather(-1, batch["action"][:-1, :, None]).squeeze(-1)
    mu = F.log_softmax(batch["behavior"][:-1], -1)
    mu = mu.gather(-1, batch["action"][:-1, :, None]).squeeze(-1)
    discounts = (~batch["done"][1:]).float() * f.discounting
    target = vtrace(taken.detach() - mu, discounts, batch["reward"][1:], values.detach(), bootstrap)

    pg_loss = -(taken * target.pg_advantages).mean()
    baseline_loss = f.baseline_cost * (target.vs - values).square().mean()
    entropy_loss = f.entropy_cost * (logp.exp() * logp).sum(-1).mean()
    total = pg_loss + baseline_loss + entropy_loss
    optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), f.grad_norm_clipping)
    optimizer.step()
    scheduler.step()
    return total.item(), baseline_loss.item()


def main(f):
    torch.manual_seed(f.seed)
    model = Net(f.frame, f.num_actions).to(f.device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=f.learning_rate, alpha=0.99, eps=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / f.learner_steps)
    for i, batch in enumerate(rollout_queue(f)):
        total, base = learn(f, model, optimizer, scheduler, batch)
        print(f"learner step {i} loss {total:.8f} (baseline part {base:.4f})", flush=True)


if __name__ == "__main__":
    main(flags)
