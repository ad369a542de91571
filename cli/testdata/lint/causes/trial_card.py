import torch
from ray import tune


def train_fn(config):
    model = torch.nn.Linear(10, 2).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(100):
        loss = model(torch.randn(8, 10).cuda()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()


tune.run(  # expect: ray-trial-without-gpu
    train_fn,
    config={"lr": tune.loguniform(1e-4, 1e-2)},
    resources_per_trial={"cpu": 4},
    num_samples=10,
)
