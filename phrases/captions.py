"""Write features of phrases, as features.captions does of captions.

    python -m phrases.captions --data_name f30k_entities --kind hglmm --name hglmm --ica \\
        --pca 6000 --word_vectors FILE --content_words

{split}_{name}.npy is (M, F) float32, a row a phrase; the options are as in `features.captions`.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

from features import captions
from phrases.data import PhraseSplit, read_phrases


def read_phrase_split(data_path: str, data_name: str, split: str) -> PhraseSplit:
    """Read the phrases of a split, whose dev split is val."""
    if split == "dev":
        split = "val"
    return read_phrases(os.path.join(data_path, data_name), split)


def main(argv=None) -> None:
    captions.main(argv, "phrases.captions", read_phrase_split)


if __name__ == "__main__":
    main()
