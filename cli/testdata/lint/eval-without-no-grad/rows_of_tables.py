"""Forecasts and attributions: some numbers a row, and gradients that are wanted."""

import pandas as pd
import torch
from captum.attr import IntegratedGradients
from torch.autograd.functional import jacobian


def forecasts(model, loader, device):
    model.eval()
    kept, recon = torch.empty(0, device=device), []
    with torch.no_grad():
        for x in loader:
            kept = torch.cat([kept, model(x.to(device))])  # hint: outputs-kept-on-card
            recon.append(model(x.to(device)).cpu())
    return pd.DataFrame(torch.cat(recon).numpy()), kept.cpu()


def attributed(model, loader, device):
    model.eval()
    found = []
    for x in loader:
        ask = IntegratedGradients(lambda z: model(z)[0])  # hint: eval-without-no-grad
        found.append(ask.attribute(x.to(device), target=0).cpu())
    return found


def sensitivities(model, loader, device):
    model.eval()
    found = []
    for x in loader:
        out = model(x.to(device))  # hint: eval-without-no-grad
        found.append(jacobian(model, x.to(device)).cpu() / out.detach().cpu().norm())
    return found


def scores(model, loader, device):
    model.eval()
    right = 0
    for x, y in loader:
        out = model(x.to(device))  # expect: eval-without-no-grad
        right += (out.argmax(1) == y.to(device)).sum().item()
    return right
