"""Evaluation of models: `evaluate` judges embeddings or scores of any model.

The way of the data: embeddings.py embeds a split by one or several models, and reading.py reads
embeddings and scores of files; each gives `embeddings.Embeddings`. annotations.py reads what people
judged. protocols.py ranks, by metrics.py, and returns what results.json holds; report.py prints it
and names the files. bank.py lowers hubs before the ranking; ambiguity.py correlates uncertainty
with the number of matches; hard_negatives.py compares right and wrong captions; bootstrap.py
compares several models; pictures.py draws, trec.py writes rankings. arrays.py does the same in
memory.
"""

__all__ = ["evaluate", "evaluate_hard_negatives", "evaluate_winoground"]


def evaluate(
    images=None,
    captions=None,
    owner=None,
    sim: str = "cosine",
    *,
    scores=None,
    scores_i2t=None,
    scores_t2i=None,
    image_log_var=None,
    caption_log_var=None,
    fold5: bool = False,
    uncertainty: bool = False,
    ndcg: bool = False,
) -> dict:
    """Judge the retrieval of captions for images and of images for captions.

        results = evaluate(images, captions, owner)
        results["protocols"]["full"]["t2i"]["r1"]

    Takes arrays of numpy, tensors of torch or lists. Returns what `evaluate.py --embeddings` writes
    to results.json, without the names of files. Raises InputError, a ValueError, on what cannot be
    ranked.

    Args:
        images: embeddings (N, D); an image may stand once for each of its captions, as in VSE++'s
            files.
        captions: embeddings (M, D).
        owner: the row of each caption's image (M,); without it M / N captions stand for each image,
            in order.
        sim: similarity, one of those of evaluate.py --sim.
        scores: (N, M), images x captions, in place of embeddings; higher scores are better.
        scores_i2t: (N, M), images x captions, of a model that scores each direction apart, as
            re-rankers do; it ranks captions for images.
        scores_t2i: (M, N), captions x images; it ranks images for captions.
        image_log_var: log-variances (N, D) or (N, 1) of Gaussians.
        caption_log_var: the same of captions (M, D) or (M, 1).
        fold5: also the mean over five folds of 1,000 images.
        uncertainty: also whether variances tell which queries fail.
        ndcg: also MRR, nDCG@10, R-precision and mAP@R of the original pairs.
    """
    from evaluation import arrays  # here, since other parts of this folder do not need it

    embeddings = arrays.collect_arrays(images, captions, owner, image_log_var, caption_log_var)
    matrices = arrays.collect_scores(scores, scores_i2t, scores_t2i)
    options = arrays.ProtocolOptions(fold5, uncertainty, ndcg)
    return arrays.evaluate_arrays(embeddings, sim, matrices, options)


def evaluate_hard_negatives(
    images=None,
    captions=None,
    negatives=None,
    owner=None,
    sim: str = "cosine",
    *,
    scores=None,
    negative_scores=None,
    texts: list | None = None,
    negative_texts: list | None = None,
) -> dict:
    """Judge how often a right caption scores higher than wrong ones, as SugarCrepe and ARO ask.

        results = evaluate_hard_negatives(images, captions, negatives, owner)
        results["text"]["accuracy"]

    Takes arrays of numpy, tensors of torch or lists. Ties count as wrong. Returns {"items",
    "images", "ties", "text": {"accuracy", "low" and "high" (95% interval of a bootstrap over
    images), "chance", and the accuracies of choices that need no image: "longer", "shorter" (the
    caption of more or fewer words), "text_only" (of the higher mean score with all images)}}, all
    accuracies in percent. Raises InputError, a ValueError, on what cannot be judged.

    Args:
        images: embeddings (N, D).
        captions: embeddings of right captions, one an item (K, D).
        negatives: of wrong captions (K, D), or (K, J, D) of J for each item.
        owner: the row of each item's image (K,); without it item k is of image k.
        sim: similarity of points, one of those of evaluate.py --sim.
        scores: of right captions with their images (K,), in place of embeddings.
        negative_scores: of wrong captions with the same images (K,) or (K, J).
        texts: K right captions; with them, "longer" and "shorter" are returned.
        negative_texts: K wrong captions, or K lists of J.
    """
    from evaluation import arrays
    from utils import InputError

    embeddings = {"images": images, "captions": captions, "negatives": negatives}
    matrices = {"scores": scores, "negative_scores": negative_scores}
    if (texts is None) != (negative_texts is None):
        raise InputError("texts and negative_texts are compared; give both, or neither")
    both = None
    if texts is not None:
        both = (texts, negative_texts)
    return arrays.evaluate_choices(embeddings, matrices, owner, sim, both)


def evaluate_winoground(images=None, captions=None, sim: str = "cosine", *, scores=None) -> dict:
    """Judge two images and two captions an item by Winoground's rules (Thrush et al. 2022).

    Text score: each image scores higher with its matched caption. Image score: each caption scores
    higher with its matched image. Group score: both. Ties count as wrong. Returns {"items",
    "images", "ties", "text", "image", "group"}, each score {"accuracy", "low", "high" (95% interval
    of a bootstrap over items), "chance"} in percent. Raises InputError, a ValueError.

    Args:
        images: embeddings (K, 2, D).
        captions: embeddings (K, 2, D); the first belongs to the first image.
        sim: similarity of points, one of those of evaluate.py --sim.
        scores: (K, 2, 2), captions x images, in place of embeddings.
    """
    from evaluation import arrays

    embeddings = {"images": images, "captions": captions}
    return arrays.evaluate_quadruples(embeddings, {"scores": scores}, sim)
