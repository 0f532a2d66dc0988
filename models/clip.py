"""A network of open_clip as a run that every command takes, without training: photos and captions
are compared by the cosine of its embeddings.

    python -m models.clip --model ViT-B-32 --weights open_clip_model.safetensors --output runs/clip
    python search.py photos ~/Pictures --checkpoint runs/clip
    python -m features.extract images --data_name f8k --kind open_clip --model ViT-B-32 \\
        --weights FILE --output_name f8k_clip
    python -m features.extract captions --data_name f8k_clip --kind open_clip --model ViT-B-32 \\
        --weights FILE
    python evaluate.py --checkpoint runs/clip --data_name f8k_clip --confidence       # and "how sure" in search
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os

import cli
from cli import Arguments, check, filename
from features.openclip import ClipCaptions, ClipPhotos
from files.writing import FORMAT, save_state
from model import build_model, build_vocabulary
from options.rules import resolve
from options.training import TRAIN
from text import SPECIALS

READY = ("--sim cosine --img_enc precomp --txt_enc features --text_features open_clip --img_layers 0 "
         "--txt_layers 0").split()


def make(name: str, weights: str, tag: str | None, output: str) -> None:
    """Writes the run folder `output` of the network `name` with the weights of a file (tag: see --tag). Raises
    InputError where it is there, and what `Clip` raises."""
    path = os.path.join(output, "model_best.pt")
    check(not os.path.lexists(path), f"{path} is there already; name another folder with --output")
    photos, captions = (kind(name, weights, tag) for kind in (ClipPhotos, ClipCaptions))
    of = TRAIN.parser().parse_args([*READY, "--embed_size", str(photos.dim), "--logger_name", output])
    of.img_dim = of.txt_dim = photos.dim
    resolve(of)
    model = build_model(of, build_vocabulary(of, SPECIALS), pretrained=False)
    made = {"extractors": {"ims": photos.line, "open_clip": captions.line},
            "open_clip": {"model": name, "weights": os.path.abspath(weights), "tag": tag},
            "temperature": float(captions.net.logit_scale.exp())}
    os.makedirs(output, exist_ok=True)
    save_state({"format": FORMAT, "options": vars(of), "vocabulary": list(SPECIALS), "model": dict(model.state_dict()),
                "state": {"epoch": 0, "best_rsum": 0.0}, "data": made}, path, "call this again")
    print(f"{output}: {photos.line}; search with: python search.py photos FOLDER --checkpoint {output}")


def main(argv=None) -> None:
    p = Arguments("Make a run of a network of open_clip, without training.")
    p.add_argument("--model", required=True, metavar="NAME",
                   help="a network such as ViT-B-32, of open_clip.list_models()")
    p.add_argument("--weights", type=filename, required=True, metavar="FILE",
                   help="the file of its weights; nothing is downloaded")
    p.add_argument("--tag", metavar="NAME", help="which published weights the file holds, where they differ in how "
                                                "photos are prepared")
    p.add_argument("--output", type=filename, default="runs/clip", metavar="RUN", help="run folder to write")
    opt = p.parse_args(argv)
    cli.run("models.clip", make, opt.model, opt.weights, opt.tag, opt.output)


if __name__ == "__main__":
    main()
