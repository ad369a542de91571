import pandas as pd
import ray
import torch
from ray import tune


def search(path):
    frame = pd.read_parquet(path)
    x = torch.tensor(frame.drop(columns="y").values, dtype=torch.float32)
    y = torch.tensor(frame["y"].values, dtype=torch.float32)

    def objective(config, x=None, y=None):
        net = torch.nn.Linear(x.shape[1], 1)
        opt = torch.optim.SGD(net.parameters(), config["lr"])
        for _ in range(100):
            loss = ((net(x).squeeze(1) - y) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        return {"loss": loss.item()}

    tuner = tune.Tuner(tune.with_resources(tune.with_parameters(objective, x=x, y=y), {"cpu": 2, "memory": 2**31}),
                       param_space={"lr": tune.loguniform(1e-4, 1e-1)},
                       tune_config=tune.TuneConfig(num_samples=64))
    return tuner.fit()
