"""Texts in classes: CSV files in the format of AG_NEWS → batches of word indices."""

import csv
import gzip
import re
import zlib
from array import array
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from base import BaseDataLoader
from data_loader.datasets import class_names
from utils.errors import ArgumentError

PAD, UNKNOWN = 0, 1  # the indices of <pad> and <unk>
TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def tokenize(text):
    """The words of a text, apostrophes inside them kept, and its punctuation marks, in lower case."""
    return TOKEN.findall(text.lower())


class Vocabulary:
    """Words by index: <pad>, <unk>, then the given ones in their order."""

    def __init__(self, words):
        self.words = ["<pad>", "<unk>", *words]
        self._index = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def of(cls, counts, min_count=1, max_size=None):
        """The words of {word: count} that occur at least min_count times, the most frequent first.

        max_size: of the vocabulary, <pad> and <unk> included.
        """
        ranked = sorted(
            (word for word, count in counts.items() if count >= max(min_count, 1)),
            key=lambda word: (-counts[word], word),
        )
        return cls(ranked[: max(max_size - 2, 0)] if max_size else ranked)

    def __len__(self):
        return len(self.words)

    def encode(self, words):
        """The index of each word; that of <unk> for one that is not there."""
        return [self._index.get(word, UNKNOWN) for word in words]

    def decode(self, indices):
        """The word of each index."""
        return [self.words[index] for index in indices]


class PadBatch:
    """A collate_fn: [((T,) int64 word indices, class), …] → (B, longest T), filled up with <pad>, and (B,)."""

    def __call__(self, examples):
        texts, labels = zip(*examples)
        return pad_sequence(list(texts), batch_first=True, padding_value=PAD), torch.tensor(labels)


class HashedText:
    """A parse function of streams.CsvRows: a row, see `labelled` → ((T,) int64 word indices, class from 0).

    A word's index, 1 ≤ index < size, is a hash of it (Weinberger et al. 2009, arXiv:0902.2206), so that no vocabulary
    has to be learned and kept; words may share one. max_length: words kept of a text.
    """

    def __init__(self, size, max_length=256):
        self.size = size
        self.max_length = max_length

    def __call__(self, row):
        label, text = labelled(row)
        words = tokenize(text)[: self.max_length] or [""]
        return torch.tensor([1 + zlib.crc32(word.encode()) % (self.size - 1) for word in words]), label


class TextDataset(Dataset):
    """The texts of a CSV file in the format of AG_NEWS (Zhang et al. 2015, arXiv:1509.01626), kept as word indices.

    path: .csv or .csv.gz, UTF-8; for what a row is, see `labelled`. max_length: words kept of a text. An empty text is
    one unknown word.
    An item is ((T,) int64 word indices, int64 class from 0), once `use` has given the vocabulary that they are of. A
    batch is read at once, as PadBatch makes it.
    """

    def __init__(self, path, max_length=256):
        index: dict[str, int] = {}
        words, lengths, labels = array("i"), [], []
        for label, text in read_rows(path):
            found = tokenize(text)[:max_length] or [""]
            words.extend(index.setdefault(word, len(index)) for word in found)
            lengths.append(len(found))
            labels.append(label)
        if labels and max(labels) >= max(len(labels), 1000):
            row = labels.index(max(labels)) + 1
            raise ArgumentError(f"data_dir: {path}, row {row}: class {max(labels) + 1} of only {len(labels)} texts.")
        self.words = list(index)  # the distinct words of the file, whatever the vocabulary
        self.texts = np.array(words, np.int32)  # one behind the other, as places in `words`
        self.starts = np.cumsum([0, *lengths])  # (N + 1,): text i is texts[starts[i] : starts[i + 1]]
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self._indices = None  # in the vocabulary, of each of `words`

    def word_counts(self, rows):
        """{word: how often it occurs in these rows}."""
        chosen = np.zeros(len(self), bool)
        chosen[rows] = True
        counts = np.bincount(self.texts[np.repeat(chosen, np.diff(self.starts))], minlength=len(self.words))
        return dict(zip(self.words, counts.tolist()))

    def use(self, vocabulary):
        """From here on items are indices in this vocabulary."""
        self._indices = np.array(vocabulary.encode(self.words))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        text = self.texts[self.starts[row] : self.starts[row + 1]]
        return torch.from_numpy(self._encoded(text)), self.labels[row]

    def __getitems__(self, rows, seeds):
        """A batch: (B, T) and (B,). Nothing is drawn, so the examples' seeds are not needed."""
        starts, ends = self.starts[rows, None], self.starts[rows + 1, None]
        places = starts + np.arange((ends - starts).max())  # (B, T)
        inside = places < ends
        texts = np.where(inside, self._encoded(self.texts[places * inside]), PAD)
        return torch.from_numpy(texts), self.labels[torch.from_numpy(rows)]

    def _encoded(self, words):
        if self._indices is None:
            raise RuntimeError("these texts have no vocabulary; `use` or the loader's load_state_dict gives them one.")
        return self._indices[words]


class TextDataLoader(BaseDataLoader):
    """Texts in classes: (B, T) int64 word indices, filled up with 0, the index of <pad>, and (B,) int64 classes.

    data_dir: holds train.csv and test.csv, plain or .gz, in the format of AG_NEWS, and perhaps classes.txt, the name
    of a class a line. training: read the first, else the second. max_length: words kept of a text. bucket: texts of so
    many batches are sorted by length and dealt to them anew, so that less is filled up.
    The vocabulary is made of the texts that are trained on: words that occur at least min_count times there, the most
    frequent max_size - 2 of them. It is the loader's state, which a loader of test data has to be given.
    """

    def __init__(
        self,
        data_dir,
        batch_size,
        shuffle=True,
        validation_split=0.0,
        num_workers=0,
        training=True,
        max_length=256,
        max_size=None,
        min_count=1,
        bucket=1,
        **dataloader_kwargs,
    ):
        dataset = TextDataset(find_csv(data_dir, "train" if training else "test"), max_length)
        more = {"collate_fn": PadBatch(), **dataloader_kwargs}  # with a transform, texts are read one by one
        super().__init__(dataset, batch_size, shuffle, validation_split, num_workers, **more)
        self.bucket = bucket
        if training:
            counts = dataset.word_counts(self.training_indices())
            names = class_names(data_dir, int(dataset.labels.max()) + 1, first=1)
            self.load_state_dict({"words": Vocabulary.of(counts, min_count, max_size).words[2:], "class_names": names})

    def _batches(self, epoch):
        """The rows of each batch of a pass, `bucket` batches at a time sorted by length and dealt anew."""
        batches = super()._batches(epoch)
        if self.bucket < 2 or self.fixed is not None:
            return batches
        draw, lengths, dealt = np.random.default_rng([self.seed, epoch]), np.diff(self.dataset.starts), []
        for first in range(0, len(batches), self.bucket):
            some = batches[first : first + self.bucket]
            rows = np.concatenate(some)
            by_length = rows[np.argsort(lengths[rows], kind="stable")]
            made = np.split(by_length, np.cumsum([len(batch) for batch in some])[:-1])
            dealt += [made[i].tolist() for i in draw.permutation(len(made))]
        return dealt

    def state_dict(self):
        return {"words": self.vocabulary.words[2:], "class_names": self.class_names}

    def load_state_dict(self, state):
        self.vocabulary, self.class_names = Vocabulary(state["words"]), state["class_names"]
        self.vocabulary_size, self.num_classes = len(self.vocabulary), len(self.class_names)
        self.dataset.use(self.vocabulary)


def find_csv(data_dir, part):
    """The path of a part's file, plain or packed."""
    found = [path for ending in (".csv", ".csv.gz") if (path := Path(data_dir) / (part + ending)).exists()]
    if not found:
        raise ArgumentError(f"data_dir: {Path(data_dir).absolute()} holds no {part}.csv or {part}.csv.gz.")
    return found[0]


def read_rows(path):
    """Yield what `labelled` makes of each row of a CSV file, plain or .gz."""
    opened, number = gzip.open if Path(path).suffix == ".gz" else open, 0
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(2**31 - 1)  # a text of more than 128 KiB is one, too
            for row in filter(None, csv.reader(file)):
                number += 1
                yield labelled(row)
        if number == 0:
            raise ValueError("there is none.")
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise ArgumentError(f"data_dir: {Path(path).absolute()}, row {number}: {error}") from error


def labelled(row):
    """(class from 0, text) of a row in the format of AG_NEWS: a class, counted from 1, and one text or more.

    Several texts (AG_NEWS's title and description) are joined. ValueError for a row that is none.
    """
    if len(row) < 2 or not row[0].isdecimal() or int(row[0]) < 1:
        raise ValueError(f"{','.join(row)[:60]!r} is no class, counted from 1, and a text. Is it a header? Remove it.")
    return int(row[0]) - 1, " ".join(row[1:])
