"""Tables: rows of numbers and words from a CSV file."""

import csv
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from base import BaseDataLoader
from utils.errors import ArgumentError, hint, shown

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")  # what stands in a cell without a value
# N rows, F features, B batch


class Table(Dataset):
    """Rows of a CSV file with a header: an item is ((F,) float32 features, int64 class), once `encode` was told how.

    target: the column to predict, of classes. numeric, categorical: columns to predict it from. `labels` are (N,) int64
    numbers of the classes as they are found in this file, for a split; an item has those of the classes trained on.
    """

    def __init__(self, data_path, target, numeric=(), categorical=()):
        if not (numeric or categorical):
            raise ArgumentError("numeric: no column to predict from; name some here or in 'categorical'.")
        for column in {*numeric} & {*categorical} | {target} & {*numeric, *categorical}:
            raise ArgumentError(f"target: '{column}' stands twice among target, numeric and categorical.")
        rows = _read(data_path, {"target": [target], "numeric": numeric, "categorical": categorical})
        self.numbers = {name: _numbers(data_path, name, rows) for name in numeric}  # name → (N,) float64, NaN: missing
        self.words = {name: np.array([row[name] for _, row in rows]) for name in categorical}  # name → (N,) str
        self.names = np.array([row[target] for _, row in rows])
        for line, row in rows:
            if row[target] in MISSING:
                raise ArgumentError(f"target: {data_path}, line {line}: no {target}. Leave such rows out of the file.")
        self.labels = np.unique(self.names, return_inverse=True)[1]
        self.encoded = None  # ((N, F), (N,)), once it is known how

    def keep(self, rows):
        """Drop all other rows."""
        self.numbers = {name: column[rows] for name, column in self.numbers.items()}
        self.words = {name: column[rows] for name, column in self.words.items()}
        self.names, self.labels = self.names[rows], self.labels[rows]

    def learn(self, rows):
        """What `encode` needs to know, in plain values, from these rows alone."""
        return {
            "numeric": {name: _statistics(column[rows]) for name, column in self.numbers.items()},
            "categorical": {name: _sorted(column[rows]) for name, column in self.words.items()},
            "classes": _sorted(self.names[rows]),
        }

    def encode(self, learned):
        """Make the features and targets by what was learned, here or on other rows.

        A number: standardised, the missing ones filled with the median; with a second feature, 1 where it was missing,
        if that came about in training. A word: one feature for each word of the training rows, 1 where it is that one;
        a word that is new has 0 in all.
        """
        columns = []
        for name, known in learned["numeric"].items():
            missing = np.isnan(self.numbers[name])
            columns.append((np.where(missing, known["median"], self.numbers[name]) - known["mean"]) / known["std"])
            columns += [missing] if known["has_missing"] else []
        for name, words in learned["categorical"].items():
            columns += [self.words[name] == word for word in words]
        classes = {name: i for i, name in enumerate(learned["classes"])}
        if strange := sorted({*self.names.tolist()} - classes.keys()):
            raise ArgumentError(f"target: {shown(strange[0])} is no class of training, of {shown(list(classes))}.")
        features = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
        self.encoded = features, torch.tensor([classes[name] for name in self.names.tolist()])

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return tuple(column[index] for column in self._encoded())

    def __getitems__(self, indices, seeds):
        """A batch: (B, F) and (B,). Nothing is drawn."""
        rows = torch.from_numpy(indices)
        return tuple(column[rows] for column in self._encoded())

    def _encoded(self):
        if self.encoded is None:
            raise RuntimeError("This table is not encoded yet: load_state_dict tells how the training rows were.")
        return self.encoded


class TabularDataLoader(BaseDataLoader):
    """A CSV file: (B, F) float32 features, see Table.encode, and (B,) int64 classes.

    test_split: share of the rows held out as test part, of each class alike and the same ones for every seed; training:
    the other rows, else the test part; with 0, either is the whole file. What the features are made by (medians, means,
    words) is learned from the rows that are trained on, without validation and test part; a checkpoint keeps it.
    `num_features`, `num_classes`, `class_names` are known then, in a test part after `load_state_dict`.
    """

    def __init__(
        self,
        data_path,
        target,
        batch_size,
        numeric=(),
        categorical=(),
        shuffle=True,
        validation_split=0.0,
        num_workers=0,
        training=True,
        test_split=0.2,
        **more,
    ):
        table = Table(data_path, target, numeric, categorical)
        if test_split:
            held_out = _held_out(table.labels, test_split)
            table.keep(~held_out if training else held_out)
        super().__init__(table, batch_size, shuffle, validation_split, num_workers, **more)
        if training:
            self.load_state_dict(table.learn(self.training_indices()))

    def state_dict(self):
        """What was learned from the training rows, in plain values."""
        return self.learned

    def load_state_dict(self, state):
        """Make the features by what was learned elsewhere."""
        self.learned = state
        self.dataset.encode(state)
        self.class_names = state["classes"]
        self.num_classes, self.num_features = len(self.class_names), self.dataset.encoded[0].shape[1]


def _read(data_path, wanted):
    """[(line number, {column: cell})] of a CSV file that has the wanted {argument: columns}."""
    try:
        with open(data_path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader]
            names = list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"data_path: {Path(data_path).absolute()}: no CSV file in UTF-8: {error}.") from error
    if twice := [name for name in names if names.count(name) > 1]:
        raise ArgumentError(f"data_path: {data_path} has two columns '{twice[0]}'. Rename one.")
    for argument, columns in wanted.items():
        for column in columns:
            if column not in names:
                raise ArgumentError(f"{argument}: no column '{column}' in {data_path}. {hint(column, names)}")
    for line, row in rows:
        if None in row or None in row.values():
            raise ArgumentError(f"data_path: {data_path}, line {line}: not {len(names)} cells, as the header has.")
    if not rows:
        raise ArgumentError(f"data_path: {Path(data_path).absolute()} has no row.")
    return rows


def _numbers(data_path, column, rows):
    """(N,) float64, NaN where the cell is empty."""
    numbers = []
    for line, row in rows:
        cell = row[column].strip()
        try:
            number = np.nan if cell in MISSING else float(cell)
        except ValueError:
            number = np.inf
        if np.isinf(number):
            why = f"{column} is {shown(cell)}, no number. Mend it, or name the column in 'categorical'."
            raise ArgumentError(f"numeric: {data_path}, line {line}: {why}")
        numbers.append(number)
    return np.array(numbers)


def _statistics(numbers):
    """Median of those that are there; mean and standard deviation of all, the missing filled with it."""
    missing = np.isnan(numbers)
    median = 0.0 if missing.all() else float(np.median(numbers[~missing]))
    filled = np.where(missing, median, numbers)
    spread = float(filled.std()) or 1.0  # of a column that is the same everywhere
    return {"median": median, "mean": float(filled.mean()), "std": spread, "has_missing": bool(missing.any())}


def _sorted(words):
    """The different words, in the order of numbers where they are some."""
    words = sorted(set(words.tolist()))
    try:
        return sorted(words, key=float)
    except ValueError:
        return words


def _held_out(labels, share):
    """(N,) bool: rows drawn with a fixed seed; of every class the share, but for a rounding of less than one row."""
    if not 0 < share < 1:
        raise ArgumentError(f"test_split: {shown(share)}; a share from 0 on and below 1 is wanted.")
    shuffled = np.random.RandomState(0).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    marks = np.floor(np.arange(len(labels) + 1) * share)
    held_out = np.zeros(len(labels), bool)
    held_out[by_class[marks[1:] > marks[:-1]]] = True
    return held_out
