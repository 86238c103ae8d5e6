"""A convolutional recurrent network with a CTC loss."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, (2, 1), 1), nn.ReLU(), nn.AdaptiveAvgPool2d((4, 24))
        )
        self.rnn = nn.GRU(128, 128, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 37)

    def forward(self, x):
        x = self.conv(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.rnn(x)[0]).log_softmax(2).transpose(0, 1)


model = CRNN().to(device)
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    out = model(torch.rand(8, 1, 32, 96, device=device))
    text = torch.randint(1, 37, (8, 5))
    loss = ctc(out, text, torch.full((8,), 24), torch.full((8,), 5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
