"""Lightning on the CPU: manual seeds, validation. Prints the weights' sum exactly."""

import logging
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import lightning as L  # noqa: E402
import torch  # noqa: E402


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 2)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.seed_everything(7)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = Model()
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False)
trainer.fit(model, loader, loader)
print("LOSSES", model.net.weight.sum().item().hex())
