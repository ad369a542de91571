"""Asks everything a training script may ask of a card, and stops with a sentence where the answer is not what a card gives."""
import os
import socket
import sys

import torch
from torch import nn


def expect(truth, what):
    if not truth:
        sys.exit("not as on a card: " + what)


def questions():
    cuda = torch.cuda
    expect(cuda.is_available() and cuda.device_count() == 1 and cuda.current_device() == 0, "one card")
    properties = cuda.get_device_properties(0)
    expect(properties.total_memory > 1 << 33 and properties.multi_processor_count > 10, "properties")
    expect(cuda.get_device_capability() == (properties.major, properties.minor) and cuda.is_bf16_supported(), "capability")
    free, total = cuda.mem_get_info()
    expect(0 < free <= total == properties.total_memory, "mem_get_info")
    cuda.manual_seed_all(1)
    with cuda.device(0), cuda.stream(cuda.Stream()):
        cuda.current_stream().synchronize()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record(), end.record(), cuda.synchronize()
    expect(start.elapsed_time(end) > 0, "events")
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()


def values():
    """Known data keeps its values on the card; only what the model computes is unknown."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], device="cuda")
    expect(mask.sum().item() == 5 and not mask.all() and mask.tolist()[0] == [1, 1, 0], "known values")
    expect(mask.nonzero().shape == (5, 2) and torch.arange(6, device="cuda")[2:].max().item() == 5, "shapes from known values")
    expect(mask.cpu().numpy().shape == (2, 3), "numpy")


def outside(path):
    try:
        socket.create_connection(("198.51.100.1", 80), timeout=1)
        expect(False, "the network was used")
    except OSError:
        pass
    torch.save({"weights": torch.zeros(3)}, path)
    expect(not os.path.exists(path), "a checkpoint was written")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return torch.full((32,), float(i)), torch.tensor(i % 10)


def train(path):
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    net[3].weight.tied = net[0].bias  # attributes stay with parameters that move
    optimizer = torch.optim.AdamW(net.parameters())  # made before the move, as scripts do
    net = torch.compile(net).cuda()
    expect(all(p.is_cuda for g in optimizer.param_groups for p in g["params"]), "the optimizer's parameters moved")
    scaler = torch.amp.GradScaler("cuda")
    expect(scaler.is_enabled(), "the scaler is on")
    loader = torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=4, pin_memory=True, shuffle=True)
    for step, (x, y) in enumerate(loader):
        x, y = x.to("cuda", non_blocking=True), y.cuda()
        expect(int(y.max()) < 10, "labels are known")
        with torch.autocast("cuda", dtype=torch.float16):
            logits = net(x)
            expect(logits.dtype == torch.float16, "autocast is on")
            loss = nn.functional.cross_entropy(logits, y)
        expect(not torch.isnan(loss) and loss.item() == loss.item(), "finite values")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        expect(torch.cuda.memory_allocated() > 0 and torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated(), "allocated")
        accuracy = (logits.argmax(1) == y).float().mean().item()
        print("step", step, "loss %.3f" % loss, "accuracy", accuracy)
        outside(path)
        expect(step < 20, "the script was not ended")


questions()
values()
train(sys.argv[1])
