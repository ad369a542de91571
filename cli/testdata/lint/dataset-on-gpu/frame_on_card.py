"""A whole table goes to the card, and rows are drawn from it there."""

import pandas as pd
import torch


def train(net, optimizer, path, steps, size):
    frame = pd.read_parquet(path)
    columns = [c for c in frame.columns if c != "price"]
    rows = torch.tensor(frame[columns].to_numpy("float32"), device="cuda")  # expect: dataset-on-gpu
    prices = frame["price"].to_numpy("float32")
    price = torch.tensor(prices, device="cuda")  # expect: dataset-on-gpu
    for _ in range(steps):
        pick = torch.randint(0, len(rows), (size,), device="cuda")
        loss = torch.nn.functional.mse_loss(net(rows[pick]).squeeze(1), price[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
