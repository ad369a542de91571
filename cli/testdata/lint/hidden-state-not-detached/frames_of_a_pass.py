"""Steps over the frames of one sample, in a network: what they carry on is differentiated by
whoever asked. A network may be called after the direction it reads in. Batches are another thing.
"""

import torch
from networks import Decoder, Encoder, Network


class Tracker(Network):
    def __init__(self, width):
        super().__init__()
        self.encoder = Encoder(width)
        self.decoder, self.decoder_backward = Decoder(width), Decoder(width)

    def forward(self, frames):
        flow, back = torch.zeros_like(frames[0]), torch.zeros_like(frames[0])
        out = {"flow": [], "back": []}
        for t in range(1, len(frames)):
            seen = self.encoder(torch.cat([frames[t], flow, back], 1))
            moved, _ = self.decoder(seen, frames[0])
            flow = flow + moved
            out["flow"].append(flow)
            moved, _ = self.decoder_backward(seen, frames[0])
            back = back + moved
            out["back"].append(back)
        return out


class Guided(Network):
    def __init__(self, width):
        super().__init__()
        self.decoder = Decoder(width)

    def forward(self, picture, rounds):
        mask, masks = torch.zeros_like(picture), []
        for _ in range(rounds):
            mask = mask + self.decoder(picture * mask)  # hint: hidden-state-not-detached
            masks.append(mask)  # hint: graph-kept-in-list
            self.backward_of(mask)
        return masks


def train(model, loader, optimizer, loss_fn, carried):
    for frames, goal in loader:
        carried = carried + model(frames)  # expect: hidden-state-not-detached
        loss = loss_fn(carried, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
