"""Lightning's Trainer on one GPU in mixed precision."""
import sys

import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
trainer = lightning.Trainer(max_epochs=2, accelerator="gpu", devices=1, precision="16-mixed", default_root_dir=sys.argv[1], logger=False,
                            enable_progress_bar=False)
trainer.fit(Module(), torch.utils.data.DataLoader(data, 32, num_workers=2))
