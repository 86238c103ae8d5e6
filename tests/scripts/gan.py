"""The shape of PyTorch's DCGAN example: two networks, two optimizers, real and fake images."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.parallel
import torch.optim as optim
import torch.utils.data

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=32)
parser.add_argument("--ngpu", type=int, default=1)
parser.add_argument(
    "--critic", type=int, default=1, help="discriminator's steps for one of the other"
)
parser.add_argument("--outf", default="samples")
opt = parser.parse_args()
os.makedirs(opt.outf, exist_ok=True)
torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0")
nz, width = 100, 32

dataset = torch.utils.data.TensorDataset(torch.randn(512, 3, 64, 64), torch.zeros(512))
dataloader = torch.utils.data.DataLoader(
    dataset, batch_size=opt.batchSize, shuffle=True, num_workers=2
)


def weights_init(m):
    if "Conv" in m.__class__.__name__:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)


def up(i, o, stride=2, pad=1):
    return [nn.ConvTranspose2d(i, o, 4, stride, pad, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]


def down(i, o):
    return [
        nn.Conv2d(i, o, 4, 2, 1, bias=False),
        nn.BatchNorm2d(o),
        nn.LeakyReLU(0.2, inplace=True),
    ]


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.main = nn.Sequential(*layers)

    def forward(self, x):
        if x.is_cuda and opt.ngpu > 1:
            return nn.parallel.data_parallel(self.main, x, range(opt.ngpu))
        return self.main(x)


netG = Net(
    *up(nz, width * 8, 1, 0),
    *up(width * 8, width * 4),
    *up(width * 4, width * 2),
    *up(width * 2, width),
    nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = Net(
    *down(3, width),
    *down(width, width * 2),
    *down(width * 2, width * 4),
    *down(width * 4, width * 8),
    nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
).to(device)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(opt.batchSize, nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

for epoch in range(25):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1, dtype=real.dtype, device=device)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), nz, 1, 1, device=device))
        label.fill_(0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()
        if i % opt.critic:
            continue
        netG.zero_grad()
        label.fill_(1)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        D_G = output.mean().item()
        optimizerG.step()
        print(
            "[%d/%d] Loss_D: %.4f %.4f" % (i, len(dataloader), (errD_real + errD_fake).item(), D_G)
        )
        if i % 100 == 0:
            torch.save(netG(fixed_noise).detach(), f"{opt.outf}/fake_{epoch}.pt")
    torch.save(netG.state_dict(), f"{opt.outf}/netG_epoch_{epoch}.pth")
