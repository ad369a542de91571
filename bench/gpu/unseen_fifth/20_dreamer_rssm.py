"""Dreamer-like agent: categorical RSSM world model, imagined actor-critic, 3 optimizers."""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, T, HORIZON, STEPS = (2, 5, 3, 8) if SMALL else (24, 48, 13, 9)
DEPTH, DETER, GROUPS, CLASSES, UNITS = (8, 24, 4, 4, 24) if SMALL else (56, 1024, 32, 32, 640)
ACTIONS = 6
STOCH, FEAT = GROUPS * CLASSES, GROUPS * CLASSES + DETER


def symlog(x):
    return x.sign() * torch.log1p(x.abs())


def mlp(i, o, layers=2):
    mods = []
    for _ in range(layers):
        mods += [nn.Linear(i, UNITS, bias=False), nn.LayerNorm(UNITS), nn.SiLU()]
        i = UNITS
    return nn.Sequential(*mods, nn.Linear(i, o))


class ChanNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def sample(logits):
    """Straight-through one-hot with 1% uniform."""
    p = 0.99 * logits.softmax(-1) + 0.01 / CLASSES
    idx = torch.multinomial(p.detach().flatten(0, -2), 1).view(p.shape[:-1])
    hot = F.one_hot(idx, CLASSES).to(p.dtype)
    return (hot + p - p.detach()).flatten(-2), p.log()


class World(nn.Module):
    def __init__(self):
        super().__init__()
        d = DEPTH
        enc, c = [], 3
        for m in (1, 2, 4, 8):
            enc += [nn.Conv2d(c, d * m, 4, 2, 1, bias=False), ChanNorm(d * m), nn.SiLU()]
            c = d * m
        self.enc = nn.Sequential(*enc, nn.Flatten())
        self.dec_in, dec = nn.Linear(FEAT, c * 16), []
        for m in (4, 2, 1):
            up = nn.ConvTranspose2d(c, d * m, 4, 2, 1, bias=False)
            dec += [up, ChanNorm(d * m), nn.SiLU()]
            c = d * m
        self.dec = nn.Sequential(*dec, nn.ConvTranspose2d(c, 3, 4, 2, 1))
        self.pre = nn.Sequential(nn.Linear(STOCH + ACTIONS, UNITS), nn.LayerNorm(UNITS), nn.SiLU())
        self.gru = nn.GRUCell(UNITS, DETER)
        self.prior, self.post = mlp(DETER, STOCH, 1), mlp(DETER + d * 8 * 16, STOCH, 1)
        self.reward, self.cont = mlp(FEAT, 1), mlp(FEAT, 1)

    def step(self, deter, stoch, action):
        return self.gru(self.pre(torch.cat([stoch, action], -1)), deter)

    def observe(self, images, actions):
        emb = self.enc(images.flatten(0, 1)).view(B, T, -1)
        deter, stoch = emb.new_zeros(B, DETER), emb.new_zeros(B, STOCH)
        feats, priors, posts = [], [], []
        for t in range(T):
            deter = self.step(deter, stoch, actions[:, t])
            prior = self.prior(deter).view(B, GROUPS, CLASSES)
            post = self.post(torch.cat([deter, emb[:, t]], -1)).view(B, GROUPS, CLASSES)
            stoch, post_logp = sample(post)
            priors.append((0.99 * prior.softmax(-1) + 0.01 / CLASSES).log())
            posts.append(post_logp)
            feats.append(torch.cat([stoch, deter], -1))
        return torch.stack(feats, 1), torch.stack(priors, 1), torch.stack(posts, 1)

    def imagine(self, feat, actor):
        stoch, deter = feat.split([STOCH, DETER], -1)
        feats, actions, logps, ents = [feat], [], [], []
        for _ in range(HORIZON):
            logits = actor(feats[-1].detach())
            dist = torch.distributions.Categorical(logits=logits)
            a = dist.sample()
            logps.append(dist.log_prob(a))
            ents.append(dist.entropy())
            # straight-through: gradients reach the actor through the dynamics too
            act = F.one_hot(a, ACTIONS) + logits.softmax(-1) - logits.softmax(-1).detach()
            deter = self.step(deter, stoch, act)
            stoch, _ = sample(self.prior(deter).view(len(deter), GROUPS, CLASSES))
            feats.append(torch.cat([stoch, deter], -1))
            actions.append(a)
        return torch.stack(feats), torch.stack(logps), torch.stack(ents)


def kl(a, b):
    return (a.exp() * (a - b)).sum((-1, -2))


def replay(g):
    a = torch.randint(0, ACTIONS, (B, T), generator=g)
    x = (a.cumsum(1) * 3) % 48
    img = 0.1 * torch.rand(B, T, 3, 64, 64, generator=g)
    for b in range(B):
        for t in range(T):
            img[b, t, a[b, t] % 3, 20:36, x[b, t] : x[b, t] + 16] = 1.0
    reward = (x > 24).float() - 0.1
    cont = (torch.rand(B, T, generator=g) > 0.02).float()
    return [v.to(device) for v in (img, F.one_hot(a, ACTIONS).float(), reward, cont)]


def world_loss(world, batch):
    img, act, reward, cont = batch
    feat, prior, post = world.observe(img, act)
    rec = world.dec(world.dec_in(feat.flatten(0, 1)).view(B * T, -1, 4, 4))
    rec_loss = (rec - img.flatten(0, 1)).square().sum((1, 2, 3)).mean()
    rew_loss = (world.reward(feat).squeeze(-1) - symlog(reward)).square().mean()
    con_loss = F.binary_cross_entropy_with_logits(world.cont(feat).squeeze(-1), cont)
    dyn = kl(post.detach(), prior).clamp(min=1.0).mean()
    rep = kl(post, prior.detach()).clamp(min=1.0).mean()
    return rec_loss + rew_loss + con_loss + 0.5 * dyn + 0.1 * rep, feat


def behaviour_loss(world, actor, critic, slow, feat):
    feats, logps, ents = world.imagine(feat.detach().flatten(0, 1), actor)
    reward = world.reward(feats[1:]).squeeze(-1)
    disc = 0.997 * world.cont(feats[1:]).squeeze(-1).sigmoid()
    value = slow(feats).squeeze(-1)
    ret, out = value[-1], []
    for t in reversed(range(HORIZON)):
        ret = reward[t] + disc[t] * (0.05 * value[t + 1] + 0.95 * ret)
        out.append(ret)
    ret = torch.stack(out[::-1])
    adv = (ret - value[:-1]).detach()
    actor_loss = -(0.1 * ret + 0.9 * logps * adv + 3e-3 * ents).mean()
    critic_loss = (critic(feats[:-1].detach()).squeeze(-1) - ret.detach()).square().mean()
    return actor_loss, critic_loss


def main():
    torch.manual_seed(2020)
    torch.backends.cudnn.deterministic = True
    world, actor, critic = (
        World().to(device),
        mlp(FEAT, ACTIONS).to(device),
        mlp(FEAT, 1).to(device),
    )
    slow = copy.deepcopy(critic).requires_grad_(False)
    opts = {
        "world": (world, torch.optim.Adam(world.parameters(), lr=1e-4, eps=1e-8), 1000.0),
        "actor": (actor, torch.optim.Adam(actor.parameters(), lr=3e-5, eps=1e-5), 100.0),
        "critic": (critic, torch.optim.Adam(critic.parameters(), lr=3e-5, eps=1e-5), 100.0),
    }

    def update(name, loss):
        module, opt, clip = opts[name]
        opt.zero_grad(set_to_none=True)
        loss.backward(inputs=list(module.parameters()))
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        opt.step()

    g = torch.Generator().manual_seed(20)
    for step in range(STEPS):
        loss_w, feat = world_loss(world, replay(g))
        update("world", loss_w)
        loss_a, loss_c = behaviour_loss(world, actor, critic, slow, feat)
        update("actor", loss_a)
        update("critic", loss_c)
        with torch.no_grad():
            for p, q in zip(slow.parameters(), critic.parameters()):
                p.lerp_(q, 0.02)
        total = loss_w.item() + loss_a.item() + loss_c.item()
        print(f"step {step} loss {total:.8f} world {loss_w.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
