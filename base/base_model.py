"""The model that a fork's models inherit."""

import torch


class BaseModel(torch.nn.Module):
    """An nn.Module that prints with the number of its parameters that learn."""

    def summary(self):
        print(self)

    def __str__(self):
        learn = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        return f"{super().__str__()}\nTrainable parameters: {learn:,}"
