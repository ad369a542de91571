"""Reads again what it has written, in the ways that scripts do."""

import glob
import json
import os
import pickle
import shutil
import sys

import torch

here = sys.argv[1]
out = os.path.join(here, "out")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).cuda()
model[1].weight.tied = model[0].weight
optimizer = torch.optim.Adam(model.parameters())
os.makedirs(out, exist_ok=True)
for step in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        with open(os.path.join(out, "best.pt"), "wb") as f:  # a whole model
            torch.save(model, f)
        with open(os.path.join(out, "best.pt"), "rb") as f:
            again = torch.load(f, weights_only=False)
        assert again[0].weight.shape == (64, 64) and again[0].weight.is_cuda, again[0].weight
        assert isinstance(again[0].weight, torch.nn.Parameter)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(out, "last.tmp"))
        os.replace(os.path.join(out, "last.tmp"), os.path.join(out, "last.pt"))
        assert not os.path.exists(os.path.join(out, "last.tmp"))
        read = torch.load(os.path.join(out, "last.pt"), map_location="cpu", weights_only=True)
        assert read["step"] == 0 and read["model"]["0.weight"].device.type == "cpu"
        model.load_state_dict(read["model"])
        optimizer.load_state_dict(read["optimizer"])
        with open(os.path.join(here, "log.json"), "w") as f:
            json.dump({"a": 1}, f)
        with open(os.path.join(here, "log.json"), "a") as f:
            f.write("\n")
        assert json.load(open(os.path.join(here, "log.json"))) == {"a": 1}
        with open(os.path.join(out, "data.pkl"), "wb") as f:
            pickle.dump([1, 2], f)
        assert pickle.load(open(os.path.join(out, "data.pkl"), "rb")) == [1, 2]
        assert sorted(os.listdir(out)) == ["best.pt", "data.pkl", "last.pt"], os.listdir(out)
        assert sorted(os.listdir(here)) == ["kept.txt", "log.json", "out", "train.py"]
        assert len(glob.glob(os.path.join(here, "*", "*.pt"))) == 2
        shutil.copy(os.path.join(out, "last.pt"), os.path.join(here, "copy.pt"))
        torch.load(os.path.join(here, "copy.pt"))
        with open(os.path.join(here, "kept.txt"), "w") as f:
            f.write("changed")
        assert open(os.path.join(here, "kept.txt")).read() == "changed"
        os.remove(os.path.join(here, "kept.txt"))
        assert not os.path.exists(os.path.join(here, "kept.txt"))
        shutil.rmtree(out)
        assert not os.path.isdir(out) and not glob.glob(os.path.join(here, "*", "*"))
print("all was read", flush=True)
sys.exit(int(sys.argv[2]))
