"""Lightning with manual optimization of two networks."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = nn.Linear(64, 512), nn.Linear(512, 1)

    def training_step(self, batch, index):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        fake = self.g(torch.randn(len(real), 64, device=self.device))
        loss = F.softplus(-self.d(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(loss)
        opt_g.step()
        loss = F.softplus(self.d(fake.detach())).mean() + F.softplus(-self.d(real)).mean()
        opt_d.zero_grad()
        self.manual_backward(loss)
        opt_d.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.g.parameters()), torch.optim.Adam(self.d.parameters())


if __name__ == "__main__":
    trainer = Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(GAN(), DataLoader(TensorDataset(torch.randn(128, 512)), 32))
