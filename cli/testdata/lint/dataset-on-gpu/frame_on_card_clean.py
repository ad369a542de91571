"""A whole table goes to the card, and rows are drawn from it there."""

import pandas as pd
import torch


def train(net, optimizer, path, steps, size):
    frame = pd.read_parquet(path)
    columns = [c for c in frame.columns if c != "price"]
    rows = torch.tensor(frame[columns].to_numpy("float32"))
    price = torch.tensor(frame["price"].to_numpy("float32"))
    for _ in range(steps):
        pick = torch.randint(0, len(rows), (size,))
        loss = torch.nn.functional.mse_loss(net(rows[pick].cuda()).squeeze(1), price[pick].cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
