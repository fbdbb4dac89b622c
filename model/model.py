"""Models. A config names one as `arch`."""

import torch.nn.functional as F
from torch import nn

from base import BaseModel


class MnistModel(BaseModel):
    """LeNet-like network for 28×28 grey images (LeCun et al. 1998), 21,840 parameters with ten classes.

    Takes (B, 1, 28, 28) float, returns (B, num_classes) log-probabilities.
    """

    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (B, 10, 12, 12)
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # (B, 20, 4, 4)
        x = x.flatten(1)  # (B, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)
