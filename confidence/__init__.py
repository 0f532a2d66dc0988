"""How sure a model is of its top-1 answers: `calibrate` judges embeddings or scores of any model.

The way of the data: inputs.py opens the items to judge and the items to calibrate on (dev).
posterior.py fits to dev, and calibration.py names the file that keeps what was fitted. measures.py
computes the confidence in each top-1 answer and judges it by whether the answer is right;
conformal.py fits sets of answers; plots.py draws. `python -m confidence` does all of this,
arrays.py the same in memory. people.py compares a model with people, pairs.py finds training
captions that do not fit, and volume.py gives points variances.
"""


def calibrate(
    images=None,
    captions=None,
    owner=None,
    sim: str = "cosine",
    *,
    scores=None,
    dev: dict | None = None,
    calibrate_on: float | None = None,
    cross_fit: int = 10,
    logit_scale: float | None = None,
    logit_bias: float | None = None,
    image_log_var=None,
    caption_log_var=None,
) -> dict:
    """Turn scores into probabilities that the top-1 answer is right, and judge these.

        results = calibrate(images, captions, owner, logit_scale=100.0)
        results["calibration"]["t2i"]["temperature"]
        results["confidence"]["t2i"]["posterior"]["auroc"]

    Takes arrays of numpy, tensors of torch or lists. Returns what `python -m confidence` writes to
    confidence.json, without the names of files, and under "calibration" what it writes to
    calibration.json. Raises InputError, a ValueError, where nothing fits.

    Args:
        images: embeddings (N, D); an image may stand once for each of its captions.
        captions: embeddings (M, D).
        owner: the row of each caption's image (M,); without it M / N captions stand for each image,
            in order.
        sim: similarity, one of those of evaluate.py --sim.
        scores: (N, M), images x captions, in place of embeddings; higher scores are better.
        dev: other items to calibrate on, {"images", "captions", "owner"} or {"scores", "owner"}.
        calibrate_on: in place of dev, the share of the images to calibrate on; the others are
            judged.
        cross_fit: without both, the folds of the images, each judged by numbers that are fitted to
            the others.
        logit_scale: the model's own factor of the cosine, 100 for CLIP; its softmax is judged, too.
        logit_bias: the model's own bias, as SigLIP has one.
        image_log_var: log-variances (N, D) or (N, 1) of Gaussians.
        caption_log_var: the same of captions (M, D) or (M, 1).
    """
    from confidence import arrays  # here, since a search needs confidence.calibration alone

    given = {
        "images": images,
        "captions": captions,
        "owner": owner,
        "scores": scores,
        "image_log_var": image_log_var,
        "caption_log_var": caption_log_var,
    }
    return arrays.calibrate_arrays(
        given, sim, dev, calibrate_on, cross_fit, logit_scale, logit_bias
    )
