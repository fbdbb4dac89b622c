"""Keys that are probably misspelt, in a config that may hold keys of one's own."""

import pytest

from extras import older_configs


def misspelt(**changes):
    return dict(older_configs.misspelt({"name": "mnist", "trainer": {"epochs": 2}, **changes}))


def test_a_name_that_is_nearly_a_key_which_is_left_out_is_probably_it():
    assert misspelt(seeed=1) == {"seeed": "no key of ours. Did you mean 'seed'?"}
    assert misspelt(trainer={"epoch": 3}) == {"trainer.epoch": "no key of ours. Did you mean 'epochs'?"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 3, "my_notes": {"seed": 1}, "n_class": 5},
        {"trainer": {"epochs": 1, "my_period": 3, "loss_weight": 0.5}},
        {"extra": {"seeed": 1}},
        {"seed": 1, "seeds": [1, 2]},
        {"trainer": {"epochs": 1, "epoch_size": 3}},
        {"trainer": None},
    ],
    ids=str,
)
def test_keys_of_ones_own_are_not_taken_for_misspelt(changes):
    assert misspelt(**changes) == {}
