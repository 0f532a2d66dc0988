"""Where real data come from: what a command that misses them says."""
# Folder or file below --data_path -> where its real data come from, as far as is known. The addresses date from the
# years 2017 to 2026.
SOURCES = {
    "coco": "COCO's train2014.zip, val2014.zip and annotations_trainval2014.zip (cocodataset.org) and the "
            "coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp)",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features); for CxC and PMRP also testall_img_ids.npy and testall_ann_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (by a form of the University of Illinois) and dataset_flickr30k.json of Karpathy's "
            "caption_datasets.zip",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, val.txt, test.txt "
                     "(github.com/BryanPlummer/flickr30k_entities), and Flickr30k's photos in images/",
    "f8k": "Flickr8k's photos, Flickr8k_Dataset.zip (by a form of the University of Illinois), and "
           "dataset_flickr8k.json of Karpathy's caption_datasets.zip",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.extract images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.extract images --layer cells)",
    "coco/annotations/instances_val2014.json": "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions (github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json and photos (visualgenome.org)",
    "GoogleNews-vectors-negative300.bin": "word2vec's vectors of Google News, 3.4 GiB "
                                          "(code.google.com/archive/p/word2vec)"}
HELP = ("docs/data.md says what comes from where, `python data.py check` what is there, `python -m demo` writes demo "
        "data")


def advice(data_name: str) -> str:
    """What a user can do when a data set is missing."""
    return f"{f'{data_name} is {SOURCES[data_name]}; ' if data_name in SOURCES else ''}{HELP}"
