"""Features of photos and captions, which `train.py` reads.

How data flow, from files to arrays:

    photos            -> folder.py (one's own) or data.py (a data set): paths
                      -> images.py with networks.py: {split}_ims.npy, (N, F) or (N, P, F)
    bottom-up         -> regions.py: {split}_ims.npy, (N, 36, 2048)
    attention's files
    captions          -> captions.py: {split}_{name}.npy, (M, F), by word vectors (word_vectors.py
                         learns them), hglmm.py, or the frozen networks of sentences.py
    drawn scenes      -> filters.py: (N, 960) or (N, 36, 192), without any weights

store.py keeps what was computed: a list of photos with digests beside the features, a hidden folder
for an interrupted command, and in features.json one line that says what made each file.
"""
