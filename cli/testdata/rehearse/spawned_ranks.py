"""The script starts a rank for each card by itself. Ranks exchange objects and normalise together;
the last keeps what it is sent.
"""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def train(rank, world):
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    heard = [None] * world
    dist.all_gather_object(heard, {"cards": torch.cuda.device_count()})
    assert [h["cards"] for h in heard] == [world] * world
    dist.broadcast_object_list([rank], src=0)
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Flatten())
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(rank)
    model = nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    kept = torch.zeros(32 << 20, device=rank) if rank == world - 1 else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        images = torch.randn(16, 3, 64, 64, device=rank)
        out = model(images)
        assert out.device == images.device == torch.device("cuda", rank)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert kept is None or rank > 0


if __name__ == "__main__":
    cards = torch.cuda.device_count()
    mp.spawn(train, args=(cards,), nprocs=cards)
