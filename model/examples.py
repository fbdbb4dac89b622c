"""Models of the worked examples in configs/, named there by dotted path: `model.examples.FashionNet`."""

from torch import nn

from base import BaseModel

# B batch, C channels, H height, W width


def conv_norm(inside, outside, stride=1):
    """A 3×3 convolution and its batch normalisation (Ioffe & Szegedy 2015): (B, inside, H, W) → (B, outside, H, W).

    With stride 2, height and width are halved. The normalisation's shift stands in for the convolution's bias.
    """
    return [nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outside)]


class FashionNet(BaseModel):
    """Five convolutions with batch normalisation, then the mean over all places (Lin et al. 2014) and a linear layer.

    Takes (B, 1, H, W) float, H and W from 4 on; returns (B, num_classes) logits. `width`: channels of the first layer.
    """

    def __init__(self, num_classes=10, width=16):
        super().__init__()
        layers, inside = [], 1
        for outside, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
            layers += [*conv_norm(inside, outside, stride), nn.ReLU()]
            inside = outside
        self.features = nn.Sequential(*layers)  # (B, 4·width, H/4, W/4)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, num_classes))

    def forward(self, x):
        return self.head(self.features(x))


class Residual(nn.Module):
    """x + two convolutions of it (He et al. 2016, arXiv:1512.03385, fig. 2); by 1×1 where the shape changes."""

    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.body = nn.Sequential(*conv_norm(inside, outside, stride), nn.ReLU(), *conv_norm(outside, outside))
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return (self.body(x) + self.shortcut(x)).relu()


class SmallResNet(BaseModel):
    """A residual network of three stages for small colour images (He et al. 2016, section 4.2).

    Takes (B, 3, H, W) float, H and W from 4 on; returns (B, num_classes) logits. Stage i has 2^i · `width` channels
    and `blocks` residual blocks.
    """

    def __init__(self, num_classes, width=16, blocks=1):
        super().__init__()
        layers, inside = [*conv_norm(3, width), nn.ReLU()], width
        for stage in range(3):
            for i in range(blocks):
                outside = width * 2**stage
                layers.append(Residual(inside, outside, stride=2 if stage and i == 0 else 1))
                inside = outside
        self.features = nn.Sequential(*layers)  # (B, 4·width, H/4, W/4)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, num_classes))

    def forward(self, x):
        return self.head(self.features(x))


class Mlp(BaseModel):
    """A multi-layer perceptron: (B, num_features) float → (B, num_classes) logits.

    hidden: the width of each hidden layer. dropout: share of their outputs that is left out in training.
    """

    def __init__(self, num_features, num_classes, hidden=(32, 32), dropout=0.0):
        super().__init__()
        layers, inside = [], num_features
        for outside in hidden:
            layers += [nn.Linear(inside, outside), nn.ReLU(), nn.Dropout(dropout)]
            inside = outside
        self.layers = nn.Sequential(*layers, nn.Linear(inside, num_classes))

    def forward(self, x):
        return self.layers(x)
