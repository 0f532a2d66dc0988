"""Search one's own photos by a text or a photo.

How data flow, from the folder to the page:

    folder of photos -> features/folder.py     finds the files
    photo            -> encoder.py             its features by a frozen network, then the trained
                                               model: an Embedding (1, D)
    embeddings       -> build.py, index.py     one file, with names and digests of the photos; or
                        milvus.py              vectors in a Milvus server
    text             -> question.py            alternatives, unwanted things, words of file names
                     -> encoder.py             an Embedding (Q, D)
    both             -> searcher.py            scores (Q, N), their order, how many photos fit
                     -> __main__.py, page.py   answers in the terminal, answers in the browser

words.py fits and judges the number of photos that fit; make_model.py makes photos/model.
"""
