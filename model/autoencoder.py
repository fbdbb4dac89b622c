"""A convolutional autoencoder."""

from torch import nn

from base import BaseModel


class Autoencoder(BaseModel):
    """Squeezes a 28×28 grey image into `latent` numbers and paints it from them (Hinton & Salakhutdinov 2006).

    Takes (B, 1, 28, 28) images in [0, 1], returns as many. width: channels of the outer convolutions; the inner ones
    have twice as many.
    """

    def __init__(self, latent=16, width=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),  # (B, width, 14, 14)
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),  # (B, 2 × width, 7, 7)
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 2 * width * 7 * 7),
            nn.ReLU(),
            nn.Unflatten(1, (2 * width, 7, 7)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, images):
        return self.decoder(self.encoder(images))
