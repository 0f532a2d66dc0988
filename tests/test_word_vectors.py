"""Reading word vectors in each form and every bad file with its sentence; vectors learned from captions; the
command."""

import numpy as np
import pytest

from features import word_vectors
from features.word_vectors import train_vectors, write_vectors
from methods.word_vectors import read_word_vectors
from tests.helpers import refused, vectors_in
from utils import InputError

WORDS = ["the", "naïve", "dog", "“", "1984"]
VECTORS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def text(header=True, blank=" "):
    lines = []
    if header:
        lines.append("5 4")
    for word, row in zip(WORDS, VECTORS):
        line = f"{word}{blank}{blank.join(map(repr, row.tolist()))}"
        if header:  # as word2vec writes it, with a blank at the end
            line += blank
        lines.append(line)
    return "\n".join([*lines, ""]).encode()


def binary(end=b"", count=5, dim=4):
    rows = [
        word.encode() + b" " + row.astype("<f4").tobytes() + end
        for word, row in zip(WORDS, VECTORS)
    ]
    return b"%d %d\n" % (count, dim) + b"".join(rows)


FORMS = {
    "word2vec text": text(),
    "tabs": text(blank="\t"),
    "windows": text().replace(b"\n", b"\r\n"),
    "binary": binary(),
    "binary with newlines": binary(b"\n"),
    "GloVe": text(False),
    "a UTF-8 mark": b"\xef\xbb\xbf" + text(),
    "a UTF-8 mark in GloVe": b"\xef\xbb\xbf" + text(False),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(tmp_path, form):
    path = str(tmp_path / "v")
    open(path, "wb").write(FORMS[form])
    vectors, known = read_word_vectors(WORDS, path)
    assert known.all() and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, VECTORS)
    vectors, known = read_word_vectors(["dog", "cat", "naïve"], path, 4)
    assert known.tolist() == [True, False, True] and not vectors[1].any()
    np.testing.assert_array_equal(vectors[[0, 2]], VECTORS[[2, 1]])


def test_words_with_blanks_and_repeated_words(tmp_path):
    """GloVe 840B has words such as ". . ."; the first of two rows of a word counts."""
    (tmp_path / "v.txt").write_text("a 1.0 2.0\n. . . 3.0 4.0\na 5.0 6.0\n\nb 7.0 8.0\n")
    vectors, _ = read_word_vectors(["a", ". . .", "b"], str(tmp_path / "v.txt"))
    assert vectors.tolist() == [[1, 2], [3, 4], [7, 8]]


@pytest.mark.parametrize(
    "content, message",
    [
        (
            b"PK\x03\x04\x00\x00",
            "holds no word vectors: its first line is not a word and numbers; .*, unpacked",
        ),
        (b"a 1.0 2.0\nb 1.0\n", "v, line 2: 1 values where the first line says 2"),
        (b"3 2\na 1.0 2.0\nb 1.0 2.0\n", "v has 2 words where its first line announces 3"),
        (b"a 1.0 2.0\nb 1.0 nan\n", "v, line 2 has values that are not finite numbers"),
        (binary()[:-3], "v ends early"),
        (binary(count=4), "v continues after the 4 words"),
        (
            b"100 2\n" + b"\xff\x00" * 5000,
            "v ends early or is not a word2vec file: no word and 2 values at row 1",
        ),
        (
            b"1 1\na " + np.float32(np.inf).tobytes(),
            "v, row 1 has values that are not finite numbers",
        ),
    ],
)
def test_bad_files_have_their_sentence(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_word_vectors([*WORDS, "a", "b"], str(tmp_path / "v"))
    assert "\n" not in str(error.value)


def test_files_that_do_not_serve_a_vocabulary_are_refused(tmp_path):
    (tmp_path / "v").write_bytes(text())
    with pytest.raises(InputError, match="have 4 values and 300 are asked for"):
        read_word_vectors(["dog"], str(tmp_path / "v"), 300)
    with pytest.raises(InputError, match="for none of the 2 words"):
        read_word_vectors(["zebra", "yak"], str(tmp_path / "v"))


CAPTIONS = [
    f"a {animal} {verb} in the {place}".split()
    for animal, verb, place in [
        ("dog", "runs", "park"),
        ("cat", "runs", "park"),
        ("dog", "sits", "park"),
        ("cat", "sits", "park"),
        ("car", "drives", "street"),
        ("bus", "drives", "street"),
        ("car", "stops", "street"),
        ("bus", "stops", "street"),
    ]
]


def slow_ppmi(captions, words, window):
    """Loops over all pairs of words."""
    n = np.zeros((len(words), len(words)))
    for caption in captions:
        for i, w in enumerate(caption):
            for j, c in enumerate(caption):
                if i != j and abs(i - j) <= window:
                    n[words.index(w), words.index(c)] += 1
    with np.errstate(divide="ignore"):
        return np.maximum(0, np.log(n * n.sum() / np.outer(n.sum(1), n.sum(0))))


@pytest.mark.parametrize("window", [2, 5])
def test_learned_vectors_factorise_the_ppmi(monkeypatch, window):
    monkeypatch.setattr(word_vectors, "WINDOW", window)
    words, vectors = train_vectors(CAPTIONS, 6)
    assert words[:3] == ["a", "in", "the"] and len(words) == 13
    u, s, _ = np.linalg.svd(slow_ppmi(CAPTIONS, words, window))
    np.testing.assert_allclose(vectors @ vectors.T, (u[:, :6] * s[:6]) @ u[:, :6].T, atol=1e-5)
    assert (vectors.max(0) > 0.99 * np.abs(vectors).max(0)).all()
    np.testing.assert_array_equal(train_vectors(CAPTIONS, 6)[1], vectors)
    alike = vectors @ vectors.T - 9 * np.eye(13)
    assert (
        words[alike[words.index("dog")].argmax()] == "cat"
        and words[alike[words.index("bus")].argmax()] == "car"
    )


def test_the_command(tmp_path, demo_path, capsys):
    out = str(tmp_path / "new" / "v.txt")
    word_vectors.main(
        ["--data_path", demo_path, "--data_name", "demo", "--dim", "20", "--output", out]
    )
    shown = capsys.readouterr().out
    assert "v.txt: vectors of 20 values for" in shown
    words = [*vectors_in(out)]
    vectors, known = read_word_vectors(words, out)
    assert vectors.shape == (len(words), 20) and known.all() and "circle" in words
    write_vectors(out, words, vectors)
    np.testing.assert_array_equal(read_word_vectors(words, out)[0], vectors)
    words = ["--data_path", demo_path, "--data_name", "demo", "--output", out, "--dim"]
    refused(
        capsys,
        word_vectors.main,
        [*words, 20],
        "v.txt already exists; replace it with --overwrite, or name",
    )
    refused(
        capsys,
        word_vectors.main,
        [*words, 9999, "--overwrite"],
        "vectors of 9999 values cannot be learned",
    )
    with pytest.raises(InputError, match="no two words of the 3 captions are within 5 positions"):
        train_vectors([["a"], ["b"], ["c"]], 1)
