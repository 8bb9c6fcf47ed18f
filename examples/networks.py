"""Networks to audit, as a person brings them: nothing here knows gradleak."""

import torch
from torch import nn
from torchvision import models


def cnn3(variant=2):
    """COPA's CNN3: variant 2 has fewer constraints than pixels, variant 3 more."""
    first, second, features = {2: ((6, 4, 2), (3, 3, 2), 147), 3: ((6, 3, 1), (9, 3, 1), 7056)}[
        variant
    ]
    return nn.Sequential(
        nn.Conv2d(3, first[0], first[1], first[2], bias=False),
        nn.Tanh(),
        nn.Conv2d(first[0], second[0], second[1], second[2], bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(features, 10),
    )


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pools, for images of 28x28."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class TwoBranches(nn.Module):
    """A fine and a coarse look at the image, side by side."""

    def __init__(self, classes=10):
        super().__init__()
        self.fine = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.coarse = nn.Conv2d(3, 6, 7, stride=2, padding=3)
        self.head = nn.Linear(12 * 16 * 16, classes)

    def forward(self, x):
        fine, coarse = torch.tanh(self.fine(x)), torch.tanh(self.coarse(x))
        return self.head(torch.cat([fine, coarse], 1).flatten(1))


def small_vit(classes=10):
    """torchvision's vision transformer, small enough for images of 32x32."""
    return models.VisionTransformer(
        image_size=32,
        patch_size=4,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=classes,
    )
