"""Lightning with manual optimization: an autoencoder and a critic, toggled in turn."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(4, b), nn.LeakyReLU(0.2))


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.GroupNorm(4, b), nn.ReLU())


class Paint(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.code = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), down(32, 48), down(48, 64))
        self.paint = nn.Sequential(up(64, 48), up(48, 32), nn.Conv2d(32, 3, 3, 1, 1), nn.Sigmoid())
        self.critic = nn.Sequential(down(3, 32), down(32, 64), nn.Conv2d(64, 1, 3))

    def training_step(self, batch, index):
        (x,) = batch
        opt_p, opt_c = self.optimizers()
        self.toggle_optimizer(opt_p)
        y = self.paint(self.code(x))
        loss_p = F.l1_loss(y, x) + 0.1 * F.softplus(-self.critic(y)).mean()
        opt_p.zero_grad()
        self.manual_backward(loss_p)
        opt_p.step()
        self.untoggle_optimizer(opt_p)
        self.toggle_optimizer(opt_c)
        loss_c = F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(y.detach())).mean()
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        opt_c.step()
        self.untoggle_optimizer(opt_c)
        print("%d loss_p %.8g loss_c %.8g" % (index, loss_p.item(), loss_c.item()), flush=True)

    def configure_optimizers(self):
        painters = [*self.code.parameters(), *self.paint.parameters()]
        return torch.optim.Adam(painters, 1e-3), torch.optim.Adam(self.critic.parameters(), 1e-3)


L.seed_everything(1, verbose=False)
data = DataLoader(TensorDataset(torch.rand(144, 3, 64, 64)), batch_size=36)
L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Paint(), data)  # fmt: skip
