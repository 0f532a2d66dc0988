"""What options of train.py go with region-phrase pairs (Flickr30k Entities), and what they cannot do there."""
import os

from files.phrases import Labels, Regions, has_phrases
from methods.labelled import CONFLICTS


def has_phrases_of(opt) -> bool:
    """Whether the data are phrases and the regions of their photos."""
    return has_phrases(os.path.join(opt.data_path, opt.data_name))


def regions_of(opt, name: str | None = None) -> Regions:
    """Which proposals and features of them are read; `name`: others than those of the options. Runs from before there
    were any have no such options."""
    found = Regions(*(getattr(opt, option, default) for option, default in zip(
        ("regions", "box_geometry", "box_origin"), Regions())))
    return found._replace(name=name) if name else found


def labels_of(opt) -> Labels:
    return Labels(opt.positive_iou, opt.negative_iou, opt.region_negatives)


HERE = "and {data_name} has phrases and the regions of their photos"
PHRASE_CONFLICTS = [(lambda o, wrong=wrong: o.localise and wrong(o), sentence) for wrong, sentence in (
    *CONFLICTS,
    (lambda o: o.sim in ("mil", "match_prob", "scan"),
     f"--sim {{sim}} compares the parts or samples of an item, {HERE}; take another one"),
    (lambda o: o.img_enc not in ("auto", "precomp"),
     f"--img_enc {{img_enc}} does not read one vector an image, {HERE}; leave it out"),
    (lambda o: o.unpaired_images or o.unpaired_captions or o.supervised_fraction < 1,
     f"--unpaired_images, --unpaired_captions and --supervised_fraction are for images and captions, {HERE}; leave "
     "them out"),
    (lambda o: o.select == "hbr", f"--select hbr ranks captions for images, {HERE}; leave it out"),
    (lambda o: not has_phrases_of(o),
     "--localise needs a data set with Annotations/, as Flickr30k Entities, and {data_name} has none; leave it out"),
    (lambda o: o.negative_iou > o.positive_iou,
     "--negative_iou {negative_iou} lies above --positive_iou {positive_iou}; give a smaller one"))]
PHRASE_CONFLICTS.append((lambda o: has_phrases_of(o) and not o.localise,
                         "--no-localise: {data_name} has phrases and the regions of their photos, none of which is an "
                         "image of its own; leave it out"))
PHRASE_OPTIONS = ("regions box_geometry box_origin positive_iou negative_iou region_negatives",
                  lambda o: o.localise, "phrases in photos (a data set with Annotations/)")
OF_CAPTIONS = ("use_restval dev_images train_shards", lambda o: not o.localise, "images and captions")
