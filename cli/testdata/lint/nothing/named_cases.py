"""Chains of cases without an else: one of them is taken in every round."""

import torch
from nets import build, pose_of
from torch import nn

model = build().cuda()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss()


def by_name(loader, kind):
    for images, joints in loader:
        with torch.autocast("cuda"):
            if kind == "direct":
                pose, weights = model(images)
            elif kind == "lifted":
                pose, weights, depth = model(images, True)
            if joints.shape[1] == 1:
                moved = pose.clone()
                moved[:, 1:] -= moved[:, :1]
                pose = moved
            loss = criterion(pose, joints)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_class(loader, net):
    for x, y in loader:
        if isinstance(net, nn.DataParallel):
            out = model(x)
        elif isinstance(net, nn.Module):
            out = model(x, net)
        if y.ndim > 1:
            out = out.clone() - out[:, :1]
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_membership(loader, mode):
    for x, y in loader:
        if mode in ("a", "b"):
            out = model(x)
        elif mode == "c" or mode == "d":
            out = model(x).mean(0)
        out = out * 2 if y.ndim > 1 else pose_of(out)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
