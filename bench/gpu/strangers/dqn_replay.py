"""Double DQN on stacked frames: a replay memory in host memory, a target network synchronised every
few updates, Huber loss, epsilon-greedy acting between the updates."""

# tiny: --batch 8 --size 36 --width 4 --device cpu
import argparse
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=768)
p.add_argument("--size", type=int, default=84)
p.add_argument("--width", type=int, default=96)
p.add_argument("--device", default="cuda")
a = p.parse_args()
random.seed(0)
torch.manual_seed(0)


class QNet(nn.Module):
    def __init__(self, w, actions=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, w, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * w, 2 * w, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
        )
        self.value = nn.Sequential(nn.Linear(72 * w, 256), nn.ReLU(), nn.Linear(256, 1))
        self.advantage = nn.Sequential(nn.Linear(72 * w, 256), nn.ReLU(), nn.Linear(256, actions))

    def forward(self, x):
        h = self.features(x.float() / 255)
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(1, keepdim=True)


online, target = QNet(a.width).to(a.device), QNet(a.width).to(a.device)
target.load_state_dict(online.state_dict())
opt = torch.optim.RMSprop(online.parameters(), lr=2.5e-5, alpha=0.95)
memory = deque(maxlen=4096)
rng = torch.Generator().manual_seed(3)


def frame():
    return torch.randint(0, 255, (4, a.size, a.size), dtype=torch.uint8, generator=rng)


state = frame()
updates = 0
while updates < 14:
    for _ in range(max(8, a.batch // 8)):
        if random.random() < 0.9:
            action = random.randrange(6)
        else:
            with torch.no_grad():
                action = int(online(state[None].to(a.device)).argmax())
        nxt = frame()
        memory.append((state, action, float(action == 2), nxt))
        state = nxt
    if len(memory) < a.batch:
        continue
    s, act, r, s2 = zip(*random.sample(memory, a.batch))
    s, s2 = torch.stack(s).to(a.device), torch.stack(s2).to(a.device)
    act, r = torch.tensor(act, device=a.device), torch.tensor(r, device=a.device)
    q = online(s).gather(1, act[:, None])[:, 0]
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        y = r + 0.99 * target(s2).gather(1, best)[:, 0]
    loss = F.smooth_l1_loss(q, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 1.0)
    opt.step()
    if updates % 5 == 0:
        target.load_state_dict(online.state_dict())
    print("step %d loss %.9g" % (updates, loss.item()), flush=True)
    updates += 1
