import torch
from ray import tune


def train_fn(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(10, 2).to(device)


tune.run(train_fn, config={}, resources_per_trial={"cpu": 4}, num_samples=10)  # hint: ray-trial-without-memory
