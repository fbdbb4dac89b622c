"""Texts in classes: what is read of a file, what the vocabulary is made of, how a batch is filled up."""

import csv
import gzip
import io
import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from data_loader.text import HashedText, PadBatch, TextDataLoader, TextDataset, Vocabulary, tokenize
from utils.errors import ConfigError

BIBLE = Path(__file__).resolve().parents[2] / "data" / "bible"
FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

# As AG_NEWS writes it: all quoted, quotes doubled, a backslash in the place of a line's end, no header.
NEWS = r'''"3","Oats rise again","TOWN - Oats rose by 2 percent, a trader\said."
"1","Talks go on","""We talk,"" a minister said."
"4","A phone without keys","It's sold from May."
'''


def folder_of(path, training, test=(("1", "", "a test"),)):
    """A folder with train.csv and test.csv of these rows."""
    path.mkdir(exist_ok=True)
    for name, rows in {"train": training, "test": test}.items():
        with open(path / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return path


@pytest.fixture
def folder(tmp_path):
    """Forty texts of two classes; text i has i % 7 + 1 words, and one of them, "only<i>", is in no other."""
    rows = [(i % 2 + 1, "", " ".join([f"only{i}"] + ["common"] * (i % 7))) for i in range(40)]
    return folder_of(tmp_path / "texts", rows)


# --- words -----------------------------------------------------------------------------------------------------------


def test_a_text_is_its_words_and_marks_in_lower_case():
    text = "And the LORD'S hand; 2 men (of Judah) said, \"It's so\"!"
    assert " ".join(tokenize(text)) == "and the lord's hand ; 2 men ( of judah ) said , \" it's so \" !"


def test_a_vocabulary_has_the_most_frequent_words_first_and_equal_ones_by_the_alphabet():
    counts = {"b": 2, "a": 2, "rare": 1, "often": 5, "never": 0}
    assert Vocabulary.of(counts).words == ["<pad>", "<unk>", "often", "a", "b", "rare"]
    assert Vocabulary.of(counts, min_count=2).words == ["<pad>", "<unk>", "often", "a", "b"]
    assert Vocabulary.of(counts, max_size=4).words == ["<pad>", "<unk>", "often", "a"]


def test_words_that_a_vocabulary_has_come_back_from_their_indices():
    vocabulary = Vocabulary(["a", "b", "c"])
    assert len(vocabulary) == 5
    assert vocabulary.encode(["c", "a", "b", "c"]) == [4, 2, 3, 4]
    assert vocabulary.decode(vocabulary.encode(["c", "a", "new", "b"])) == ["c", "a", "<unk>", "b"]


def test_a_hashed_word_has_the_same_index_everywhere_and_never_that_of_a_filled_up_place():
    """CRC-32 of "123456789" is 0xCBF43926, the check value of its definition."""
    read = HashedText(size=50)
    words, label = read(["2", "", "123456789 " + " ".join(map(str, range(500)))])
    assert label == 1 and words[0] == 1 + 0xCBF43926 % 49
    assert words.min() >= 1 and words.max() < 50 and len(words.unique()) == 49
    assert len(HashedText(50, max_length=3)(["1", "a b c d"])[0]) == 3


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_file_of_ag_news_is_read_as_it_is(tmp_path, ending):
    content = NEWS.encode()
    (tmp_path / f"train.{ending}").write_bytes(gzip.compress(content) if ending == "csv.gz" else content)
    loader = TextDataLoader(tmp_path, 3, shuffle=False)
    ((texts, labels),) = loader
    assert labels.tolist() == [2, 0, 3] and labels.dtype == texts.dtype == torch.int64
    assert [" ".join(loader.vocabulary.decode(text[text != 0])) for text in texts] == [
        r"oats rise again town - oats rose by 2 percent , a trader \ said .",
        'talks go on " we talk , " a minister said .',
        "a phone without keys it's sold from may .",
    ]
    assert loader.num_classes == 4 and loader.class_names == ["1", "2", "3", "4"]


def test_classes_have_the_names_that_stand_beside_the_data(folder):
    (folder / "classes.txt").write_text("Even numbers\nOdd\n")
    loader = TextDataLoader(folder, 8)
    assert loader.class_names == ["Even numbers", "Odd"] and loader.num_classes == 2


def test_a_class_without_a_name_is_a_config_error(folder):
    (folder / "classes.txt").write_text("Even\n")
    with pytest.raises(ConfigError, match=r"^data_dir: .*classes.txt names 1 classes, and there are 2 in use"):
        TextDataLoader(folder, 8)


@pytest.mark.parametrize("row", ["Class Index,Title,Description", "0,a text", "-1,a text", "1", "x,a text", '""'])
def test_a_row_that_is_no_class_and_text_is_a_config_error_with_its_number(tmp_path, row):
    (tmp_path / "train.csv").write_text(f"1,good\n{row}\n")
    with pytest.raises(ConfigError, match=r"^data_dir: .*train.csv, row 2: .*counted from 1"):
        TextDataLoader(tmp_path, 8)


def test_empty_lines_are_passed_over_and_a_file_of_nothing_else_is_a_config_error(tmp_path):
    (tmp_path / "train.csv").write_text("\n1,a b\n\n2,c\n\n")
    assert TextDataLoader(tmp_path, 8).dataset.labels.tolist() == [0, 1]
    (tmp_path / "train.csv").write_text("\n")
    with pytest.raises(ConfigError, match=r"^data_dir: .*train.csv, row 0: there is none"):
        TextDataLoader(tmp_path, 8)


def test_a_missing_and_a_damaged_file_are_config_errors(tmp_path):
    with pytest.raises(ConfigError, match=r"^data_dir: .* holds no train.csv or train.csv.gz"):
        TextDataLoader(tmp_path, 8)
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(NEWS.encode())[:-12])
    with pytest.raises(ConfigError, match=r"^data_dir: .*train.csv.gz, row"):
        TextDataLoader(tmp_path, 8)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_read_at_once_is_its_items_filled_up_with_zeros_behind(folder):
    dataset = TextDataLoader(folder, 8).dataset
    rows = np.array([6, 0, 13, 6])
    texts, labels = dataset.__getitems__(rows, None)
    items = [dataset[row] for row in rows]
    assert texts.shape == (4, 7) and labels.tolist() == [0, 0, 1, 0]
    for text, (item, _) in zip(texts.tolist(), items):
        assert text == item.tolist() + [0] * (7 - len(item))
    collated = PadBatch()(items)
    assert torch.equal(collated[0], texts) and torch.equal(collated[1], labels)


def test_a_batch_may_fill_up_the_last_text_of_the_file(folder):
    dataset = TextDataLoader(folder, 8).dataset
    texts, _ = dataset.__getitems__(np.array([6, 39]), None)
    assert texts[1].tolist() == dataset[39][0].tolist() + [0] * (7 - len(dataset[39][0]))


def test_a_long_text_is_cut_and_an_empty_one_is_one_unknown_word(tmp_path):
    rows = [("1", "", "a b c d"), ("1", "", ""), ("1", "", "a")]
    loader = TextDataLoader(folder_of(tmp_path, rows), 3, shuffle=False, max_length=3, min_count=2)
    ((texts, _),) = loader
    assert texts.tolist() == [[2, 1, 1], [1, 0, 0], [2, 0, 0]]


@FORKS
def test_batches_do_not_depend_on_the_number_of_workers(folder):
    how = {"shuffle": True, "validation_split": 0.2, "bucket": 2}
    alone, helped = (list(TextDataLoader(folder, 6, num_workers=workers, **how)) for workers in (0, 2))
    assert len(alone) == len(helped) == 6
    for one, other in zip(alone, helped):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def rows_of(loader, epoch):
    return [rows for _, _, (rows, _, _) in loader._plan(epoch)]


def test_texts_of_like_length_come_together_and_each_still_once_a_pass(folder):
    """In two buckets of four batches of five, each bucket's batches are those of its texts in order of length."""
    mixed, sorted_ = (TextDataLoader(folder, 5, shuffle=True, bucket=bucket) for bucket in (1, 4))
    lengths = np.arange(40) % 7 + 1
    before, after = rows_of(mixed, 1), rows_of(sorted_, 1)
    for first in (0, 4):
        expected = sorted(lengths[np.concatenate(before[first : first + 4])])
        batches = sorted(sorted(lengths[batch]) for batch in after[first : first + 4])
        assert np.concatenate(batches).tolist() == expected
        assert sorted(np.concatenate(before[first : first + 4])) == sorted(np.concatenate(after[first : first + 4]))
    assert after != rows_of(sorted_, 2) and after == rows_of(sorted_, 1)


def test_what_collates_texts_can_be_sent_to_a_worker(folder):
    for made in (PadBatch(), HashedText(50), TextDataLoader(folder, 8).dataset):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)


# --- what is learned of the data -------------------------------------------------------------------------------------


def test_the_vocabulary_is_made_of_the_training_texts_alone(folder):
    loader = TextDataLoader(folder, 8, validation_split=10)
    training = loader.training_indices()
    assert len(training) == 30
    assert set(loader.vocabulary.words) == {"<pad>", "<unk>", "common", *(f"only{i}" for i in training)}
    texts = torch.cat([text.flatten() for text, _ in loader.split_validation()])
    assert texts.max() == loader.vocabulary.encode(["common"])[0]  # what only they have is unknown
    assert (texts == 1).sum() == 10


def test_the_vocabulary_without_a_split_is_made_of_all_texts(folder):
    loader = TextDataLoader(folder, 8)
    assert loader.vocabulary_size == len(loader.vocabulary) == 40 + 3


def test_test_texts_are_indices_in_the_vocabulary_that_was_learned(tmp_path):
    folder_of(tmp_path, [("1", "", "b b a"), ("2", "", "b")], [("2", "", "a new b"), ("1", "", "new")])
    learned = TextDataLoader(tmp_path, 2).state_dict()
    (tmp_path / "train.csv").unlink()
    loader = TextDataLoader(tmp_path, 2, shuffle=False, training=False)
    loader.load_state_dict(json.loads(json.dumps(learned)))  # it is plain
    ((texts, labels),) = loader
    assert texts.tolist() == [[3, 1, 2], [1, 0, 0]] and labels.tolist() == [1, 0]
    assert (loader.vocabulary_size, loader.num_classes) == (4, 2)
    assert loader.state_dict() == learned


def test_test_texts_are_not_read_before_the_vocabulary_is_there(folder):
    with pytest.raises(RuntimeError, match="no vocabulary"):
        next(iter(TextDataLoader(folder, 8, training=False)))


# --- the verses that come with the project ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verses():
    """{part: its rows}, read by Python's own means."""
    found = {}
    for part in ("train", "test"):
        text = gzip.decompress((BIBLE / f"{part}.csv.gz").read_bytes()).decode("ascii")
        found[part] = list(csv.reader(io.StringIO(text, newline="")))
    return found


def test_the_shipped_verses_are_as_many_as_their_description_says(verses):
    assert [len(verses[part]) for part in ("train", "test")] == [24598, 6150]
    assert (BIBLE / "classes.txt").read_text().split() == ["Law", "History", "Wisdom", "Prophets", "Gospels", "Letters"]


def test_no_shipped_verse_is_there_twice_be_it_in_other_letters(verses):
    texts = {"".join(filter(str.isalpha, row[2].lower())) for part in verses.values() for row in part}
    assert len(texts) == 24598 + 6150


def test_every_part_of_the_bible_has_the_same_share_of_both_files(verses):
    training, test = (Counter(row[0] for row in verses[part]) for part in ("train", "test"))
    assert training.keys() == test.keys() == set("123456")
    for label in training:
        assert test[label] / 6150 == pytest.approx(training[label] / 24598, abs=1 / 6150)


def test_the_shipped_verses_are_read_word_by_word(verses):
    dataset = TextDataset(BIBLE / "test.csv.gz")
    text = dataset.texts[dataset.starts[100] : dataset.starts[101]]
    assert [dataset.words[word] for word in text] == tokenize(verses["test"][100][2])
    assert dataset.labels.tolist() == [int(row[0]) - 1 for row in verses["test"]]
