"""Classifiers of texts: (B, T) word indices, 0 where there is no word → (B, num_classes) logits."""

import torch
from torch import nn

from base import BaseModel

PAD = 0


class BagOfWords(BaseModel):
    """The mean of the words' vectors and a linear layer (fastText: Joulin et al. 2017, arXiv:1607.01759).

    dim: of a word's vector. dropout: of the mean's elements.
    """

    def __init__(self, vocabulary_size, num_classes, dim=64, dropout=0.0):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary_size, dim, mode="mean", padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, texts):
        return self.head(self.dropout(self.embedding(texts)))


class TextTransformer(BaseModel):
    """A Transformer encoder (Vaswani et al. 2017, arXiv:1706.03762), its mean over the words and a linear layer.

    Normalisation comes before attention and feed-forward (Xiong et al. 2020, arXiv:2002.04745); positions are learned.
    max_length: longest text, in words. dim: of a word's vector, a multiple of `heads`; feed-forward layers have
    4 × dim.
    """

    def __init__(self, vocabulary_size, num_classes, max_length, dim=64, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dim, padding_idx=PAD)
        self.position = nn.Parameter(torch.zeros(max_length, dim))
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, num_classes)
        for weights in self.encoder.parameters():  # the layers begin as copies of one
            if weights.dim() > 1:
                nn.init.xavier_uniform_(weights)

    def forward(self, texts):
        words = self.dropout(self.embedding(texts) + self.position[: texts.shape[1]])  # (B, T, dim)
        is_pad = texts == PAD
        words = self.encoder(words, src_key_padding_mask=is_pad)
        words = words.masked_fill(is_pad.unsqueeze(2), 0)
        return self.head(words.sum(dim=1) / (~is_pad).sum(dim=1, keepdim=True))
