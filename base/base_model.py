"""The model that a fork's models inherit."""

from abc import abstractmethod

import torch


class BaseModel(torch.nn.Module):
    """An nn.Module that prints with the number of its parameters that learn."""

    @abstractmethod
    def forward(self, *inputs):
        raise NotImplementedError

    def trainable_parameters(self):
        """How many numbers the optimizer moves."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    def summary(self):
        print(self)

    def __str__(self):
        return f"{super().__str__()}\nTrainable parameters: {self.trainable_parameters():,}"
