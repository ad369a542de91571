from collections import defaultdict

import torch
from world import VAE, loader


def train(epochs=20):
    vae = VAE().cuda()
    opt = torch.optim.Adam(vae.parameters(), 1e-4)
    logs = defaultdict(list)
    for epoch in range(epochs):
        for img in loader:
            img = img.cuda()
            recon, mu, logvar = vae(img)
            terms = {
                "recon": ((recon - img) ** 2).mean(),
                "kl": -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean(),
            }
            loss = terms["recon"] + 0.1 * terms["kl"]
            opt.zero_grad()
            loss.backward()
            opt.step()
            for name, value in terms.items():
                logs[name].append(value.item())
    return logs
