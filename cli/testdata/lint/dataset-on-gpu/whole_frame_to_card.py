import pandas as pd
import torch
from torch import nn


def read(path):
    frame = pd.read_parquet(path)
    return frame.drop(columns="y").to_numpy("float32"), frame["y"].to_numpy("float32")


def to_card(*arrays):
    return [torch.from_numpy(a).to("cuda") for a in arrays]  # expect: dataset-on-gpu


x, y = to_card(*read("clicks.parquet"))
model = nn.Sequential(nn.Linear(x.shape[1], 512), nn.ReLU(), nn.Linear(512, 1)).to("cuda")
opt = torch.optim.Adam(model.parameters())
for epoch in range(5):
    for i in range(0, len(x), 4096):
        loss = nn.functional.mse_loss(
            model(x[i : i + 4096].to("cuda")).squeeze(1), y[i : i + 4096].to("cuda")
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
