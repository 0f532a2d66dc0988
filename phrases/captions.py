"""Write features of phrases, as features.captions does of captions.

    python -m phrases.captions --data_name f30k_entities --kind hglmm --name hglmm --ica --pca 6000 \\
        --word_vectors FILE --content_words

{split}_{name}.npy is (M, F) float32, a row a phrase; the options are as in `features.captions`.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

from features import captions
from phrases.data import read_phrases


def main(argv=None) -> None:
    captions.main(argv, "phrases.captions", lambda data_path, data_name, split: read_phrases(
        os.path.join(data_path, data_name), "val" if split == "dev" else split))


if __name__ == "__main__":
    main()
