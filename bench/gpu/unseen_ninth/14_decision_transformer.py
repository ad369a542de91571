"""Offline reinforcement learning with a decision transformer on logged point-mass trajectories."""

from dataclasses import dataclass, fields

import torch
import torch.nn as nn

torch.manual_seed(55)
device = "cuda" if torch.cuda.is_available() else "cpu"

STATE, ACTION, MAX_EP = 17, 6, 200
CONTEXT, DIM, DEPTH, HEADS, BATCH, STEPS = 64, 512, 8, 8, 64, 12
if device == "cpu":
    CONTEXT, DIM, DEPTH, HEADS, BATCH, STEPS = 8, 32, 2, 2, 8, 10


@dataclass
class Segment:
    states: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    timesteps: torch.Tensor
    mask: torch.Tensor

    def to(self, where):
        return Segment(*(getattr(self, f.name).to(where) for f in fields(self)))


class ReplayDataset:
    """Episodes of a linear system controlled by policies of mixed quality."""

    def __init__(self, episodes=64):
        a = torch.eye(STATE) * 0.95 + 0.02 * torch.randn(STATE, STATE)
        b = 0.3 * torch.randn(STATE, ACTION)
        gain = -torch.linalg.pinv(b)
        skill = torch.rand(episodes, 1)
        s = torch.randn(episodes, STATE)
        states, actions, rewards = [], [], []
        for _ in range(MAX_EP):
            u = (skill * (s @ gain.T) * 0.3 + (1 - skill) * torch.randn(episodes, ACTION)).tanh()
            states.append(s)
            actions.append(u)
            rewards.append(-s.square().mean(-1) - 0.1 * u.square().mean(-1))
            s = (s @ a.T + u @ b.T).clamp(-5, 5)
        self.states, self.actions = torch.stack(states, 1), torch.stack(actions, 1)
        rewards = torch.stack(rewards, 1)
        self.rtg = rewards.flip(1).cumsum(1).flip(1)
        self.mean, self.std = self.states.mean((0, 1)), self.states.std((0, 1)) + 1e-6
        # sample long episodes (here all equal) and better ones slightly more often
        self.p = torch.softmax(self.rtg[:, 0] / self.rtg[:, 0].std(), 0)

    def sample(self, n):
        rows = torch.multinomial(self.p, n, replacement=True)
        starts = torch.randint(0, MAX_EP, (n,))
        index = starts[:, None] + torch.arange(CONTEXT)
        mask = index < MAX_EP
        index = index.clamp(max=MAX_EP - 1)
        pick = rows[:, None]
        return Segment(
            states=(self.states[pick, index] - self.mean) / self.std,
            actions=self.actions[pick, index],
            returns=self.rtg[pick, index].unsqueeze(-1) / 100.0,
            timesteps=index,
            mask=mask,
        )


class DecisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_time = nn.Embedding(MAX_EP, DIM)
        self.embed_return = nn.Linear(1, DIM)
        self.embed_state = nn.Linear(STATE, DIM)
        self.embed_action = nn.Linear(ACTION, DIM)
        self.norm = nn.LayerNorm(DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        causal = nn.Transformer.generate_square_subsequent_mask(3 * CONTEXT)
        self.register_buffer("causal", causal == float("-inf"))
        self.predict_action = nn.Sequential(nn.Linear(DIM, ACTION), nn.Tanh())
        self.predict_state = nn.Linear(DIM, STATE)
        self.predict_return = nn.Linear(DIM, 1)

    def forward(self, seg):
        b, t, _ = seg.states.shape
        time = self.embed_time(seg.timesteps)
        tokens = torch.stack(
            [
                self.embed_return(seg.returns) + time,
                self.embed_state(seg.states) + time,
                self.embed_action(seg.actions) + time,
            ],
            dim=2,
        ).reshape(b, 3 * t, DIM)
        pad = (~seg.mask).repeat_interleave(3, dim=1)
        h = self.transformer(self.norm(tokens), mask=self.causal, src_key_padding_mask=pad)
        h = h.view(b, t, 3, DIM)
        action = self.predict_action(h[:, :, 1])
        return action, self.predict_state(h[:, :, 2]), self.predict_return(h[:, :, 2])


def masked_mse(pred, target, mask):
    return (pred - target)[mask].square().mean()


data = ReplayDataset()
model = DecisionTransformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 5, 1))

for step in range(STEPS):
    segment = data.sample(BATCH).to(device)
    actions, states, returns = model(segment)
    loss = masked_mse(actions, segment.actions, segment.mask)
    both = segment.mask[:, 1:]
    loss = loss + 0.1 * masked_mse(states[:, :-1], segment.states[:, 1:], both)
    loss = loss + 0.1 * masked_mse(returns[:, :-1], segment.returns[:, 1:], both)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
