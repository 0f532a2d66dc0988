"""Phrase localization: find the region of a photo that a phrase means (jwae 5.2, Table 7).

How data flow:

    entities.py   Sentences/ and Annotations/ -> phrases, their boxes, and photos (`Entities`)
    proposals.py  photos -> boxes that may hold a thing, {split}_{proposals}.npz
    regions.py    photos and boxes, pooled by pooling.py -> {split}_{proposals}_{features}.npy
    captions.py   phrases -> features of phrases, {split}_{name}.npy, for models without words
    data.py       all of these -> a `PhraseSplit`, and batches of regions, phrases and labels
    train.py      batches, and the objectives of losses.py -> a run folder, as train.py writes it
    ranking.py    scores of a photo's regions for its phrases -> ranks and recalls at IoU 0.5
    posterior.py  these scores -> the probability of a box, and whether it tells right boxes
    evaluate.py   a run -> results.json and tables
    counts.py     phrases alone -> how many photos show a thing, and how many captions name it
"""
