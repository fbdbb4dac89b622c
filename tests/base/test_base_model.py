"""The model that a fork's models inherit."""

import torch

from base import BaseModel


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.seen = torch.nn.Linear(3, 4)  # 16 numbers
        self.frozen = torch.nn.Linear(3, 100).requires_grad_(False)

    def forward(self, inputs):
        return self.seen(inputs)


def test_a_model_prints_with_the_number_of_its_parameters_that_learn():
    text = str(Net())
    assert "(seen): Linear" in text and text.endswith("Trainable parameters: 16")


def test_a_model_without_parameters_prints_too():
    assert str(type("Empty", (BaseModel,), {"forward": None})()).endswith("Trainable parameters: 0")
