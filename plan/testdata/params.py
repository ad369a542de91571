"""Counts the parameters of real models, built on the meta device: one JSON line {"type", "params", "config"} for each of the
[model_type, overrides, head] that stdin lists."""
import json
import sys
import warnings

import torch
import transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
for kind, overrides, head in json.load(sys.stdin):
    if kind == "torchvision":
        import torchvision

        name = overrides["name"]
        with torch.device("cpu" if name.startswith("regnet") else "meta"):  # RegNet computes its widths with tensors
            model = getattr(torchvision.models, name)(weights=None)
        config = {"model_type": "torchvision", **overrides}
    else:
        config = transformers.AutoConfig.for_model(kind, **overrides)
        build = getattr(transformers, head).from_config if head.startswith("Auto") else getattr(transformers, head)
        with torch.device("meta"):
            model = build(config)
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    print(json.dumps({"type": kind, "head": head, "params": sum(p.numel() for p in model.parameters()), "config": config}), flush=True)
