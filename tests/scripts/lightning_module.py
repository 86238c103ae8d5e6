"""The shape of a Lightning training: a module, a data module, callbacks and a logger."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningDataModule):
    def setup(self, stage):
        self.data = TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,)))

    def train_dataloader(self):
        return DataLoader(
            self.data, batch_size=64, shuffle=True, num_workers=4, persistent_workers=True
        )

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=64, num_workers=4)


class Classifier(LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 10),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y), prog_bar=True)
        self.log("val_acc", (out.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


if __name__ == "__main__":
    seed_everything(1)
    trainer = Trainer(
        accelerator="auto",
        devices="auto",
        max_epochs=3,
        precision="16-mixed",
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="digits"),
        callbacks=[ModelCheckpoint(monitor="val_acc", mode="max"), LearningRateMonitor("epoch")],
    )
    trainer.fit(Classifier(), datamodule=Digits())
