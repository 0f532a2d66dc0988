"""Write features of phrases, as features.extract does of captions.

    python -m phrases.captions --data_name f30k_entities --kind hglmm --name hglmm --ica --pca 6000 \\
        --word_vectors FILE --content_words

{split}_{name}.npy is (M, F) float32, a row a phrase; the options are those of `features.extract captions`.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import cli
from features.extract import arguments, extract_captions
from phrases.data import read_phrases


def read_text(data_path: str, data_name: str, split: str):
    return read_phrases(os.path.join(data_path, data_name), split, text_only=True)


def main(argv=None) -> None:
    p, kinds = arguments("captions")
    p.prog = cli.program()
    cli.run("phrases.captions", extract_captions, p.parse_args(argv), kinds, read_text)


if __name__ == "__main__":
    main()
