"""The classifiers of texts, against closed forms and one text at a time."""

import pytest
import torch

from model.text import BagOfWords, TextTransformer

TEXTS = [[5, 3, 9], [7], [2, 2, 4, 8, 3, 1], [9, 5]]


def padded(texts, length):
    return torch.tensor([text + [0] * (length - len(text)) for text in texts])


def made(model, **more):
    torch.manual_seed(0)
    return model(vocabulary_size=10, num_classes=3, **more).double().eval()


MODELS = {
    "bag": (BagOfWords, {}),
    "transformer": (TextTransformer, {"max_length": 12, "dim": 8, "heads": 2, "dropout": 0.0}),
}


@pytest.fixture(params=MODELS)
def model(request):
    kind, how = MODELS[request.param]
    return made(kind, **how)


def test_a_bag_of_words_is_a_linear_layer_of_the_mean_of_its_words_vectors():
    model = made(BagOfWords, dim=4, dropout=0.5)
    vectors = model.embedding.weight
    for text, output in zip(TEXTS, model(padded(TEXTS, 8))):
        mean = sum(vectors[word] for word in text) / len(text)
        torch.testing.assert_close(output, model.head.weight @ mean + model.head.bias)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])  # torch has a fast path for the second
@pytest.mark.parametrize("length", [6, 7, 12])
def test_padding_does_not_change_the_output(model, length, mode):
    with torch.set_grad_enabled(mode):
        model.train(mode)
        alone = torch.cat([model(torch.tensor([text])) for text in TEXTS])
        torch.testing.assert_close(model(padded(TEXTS, length)), alone, rtol=0, atol=1e-12)


def test_padding_is_not_learned(model):
    model(padded(TEXTS, 9)).square().sum().backward()
    gradient = model.embedding.weight.grad
    assert not gradient[0].any() and gradient[1:6].any()


def test_the_order_of_words_matters_to_the_transformer_alone():
    bag, transformer = (made(kind, **how) for kind, how in MODELS.values())
    transformer.position.data.normal_()
    for model, same in ((bag, True), (transformer, False)):
        one, other = model(torch.tensor([[5, 3, 9], [9, 5, 3]]))
        assert torch.allclose(one, other) is same


def test_the_layers_of_the_transformer_begin_with_weights_of_their_own():
    model = TextTransformer(10, 3, 12, dim=8, heads=2, layers=2)
    one, other = (layer.linear1.weight for layer in model.encoder.layers)
    assert not torch.equal(one, other)
