"""Crops of photos and parts of captions: do Gaussians become wider where content is ambiguous?

How data flow (`pmrl` 3.4, Fig. 1 and Table 3; `ucmr` Fig. 2 and 3, Table 4):

    prepare.py      regions or phrases of photos -> manifest.json: boxes and captions of triplets
                    A, B and C (around both), and of whole images with three crops
    encoding.py     a run and the crops and captions of a manifest -> embeddings; features of crops
                    are kept in a cache
    selection.py    embeddings -> how often a model chooses the right one of two, selection.json
    uncertainty.py  embeddings -> log det Sigma of A and C, and tests of its direction,
                    uncertainty.json and a figure
    crops.py        one photo, or triplets of the manifest -> a picture with scores and
                    uncertainties
"""
