"""Several cards of one process hold one copy of what is loaded, several ranks one each."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel


def predict(net, path, loader):
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    if torch.cuda.device_count() > 1:
        net = DataParallel(net)
    net = net.cuda().eval()
    with torch.no_grad():
        return [net(x.cuda()).argmax(1).cpu() for x in loader]


def resume(net, path, rank):
    dist.init_process_group("nccl")
    saved = torch.load(path)  # expect: checkpoint-without-map-location
    net.load_state_dict(saved["net"])
    return DistributedDataParallel(net.to(rank), device_ids=[rank])
