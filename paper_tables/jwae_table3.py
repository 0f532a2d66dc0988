"""`jwae` Table 3: jWAE and the methods it is compared with, Flickr30K and COCO."""

from paper_tables.commands import RUN, Command, evaluate, run_module, train
from paper_tables.runner import Row, Table, main, recalls

TESTS = {"f30k": evaluate(), "coco": evaluate(fold5=True)}
NETWORK_OPTIONS = {
    "f30k": {"cnn_type": "resnet152"},
    "coco": {"cnn_type": "resnet152", "use_restval": True},
}
COCO_SCAN = {"num_epochs": 20, "learning_rate": "5e-4", "lr_update": 10}  # SCAN's recipe on COCO
CCA_TUNED = {"eta_image": "auto", "dim": "auto"}
VSEPP_TUNING = {"finetune": True, "freeze_bn": True, "learning_rate": "2e-5"}
JWAE_RATE = {"learning_rate": "1e-4"}
JWAE_TUNING = {"learning_rate": "2e-5", "finetune": True, "freeze_bn": True}

# ---- trainings; data: "f30k" or "coco"


def fit_cca(data: str, features: str, **options: str) -> Command:
    return run_module("methods.cca", data_name=f"{data}_vgg_precomp", text=features, **options)


def train_branches(data: str, features: str, method: str) -> Command:
    """Train as the two-branch networks' code."""
    return train(
        data_name=f"{data}_vgg_precomp",
        method=method,
        learning_rate="1e-4",
        num_epochs=20,
        lr_update=1000,
        text_features=features,
    )


def train_vectors(data: str, features: str, method: str) -> Command:
    """Train on features of photos as the files have them, and on features of captions."""
    return train(
        data_name=f"{data}_vgg_precomp",
        method=method,
        learning_rate="1e-4",
        feature_norm=False,
        text_features=features,
    )


def train_scan(data: str, method: str) -> Command:
    """Train on regions, by SCAN's recipe."""
    recipe = COCO_SCAN if data == "coco" else {}
    return train(
        data_name=f"{data}_precomp", method=method, agg_func="Mean", feature_norm=False, **recipe
    )


def train_photos(data: str, method: str, **options) -> Command:
    """Train for 30 epochs on photos, whose network stays as it is."""
    return train(data_name=data, method=method, **options, **NETWORK_OPTIONS[data])


def tune_photos(data: str, method: str, **options) -> Command:
    """Train for 15 more epochs."""
    return train(
        data_name=data,
        method=method,
        **options,
        num_epochs=15,
        **NETWORK_OPTIONS[data],
        init_from=RUN,
    )


# ---- runs on Flickr30K and on COCO


def make_runs(make_training, features: str, *method: str, **options: str) -> tuple:
    """The runs of one of fit_cca, train_branches and train_vectors, which gets the arguments."""
    runs = []
    for data, test in TESTS.items():
        runs.append((make_training(data, features, *method, **options), test))
    return tuple(runs)


def make_scan_runs(method: str) -> tuple:
    return (
        (train_scan("f30k", method), evaluate()),
        (train_scan("coco", method), evaluate(split="testall", fold5=True)),
    )


def make_tuned_runs(method: str, first: dict, tuning: dict) -> tuple:
    """The runs of a network that is trained, then fine-tuned, each with options of its own."""
    runs = []
    for data, test in TESTS.items():
        training = train_photos(data, method, **first)
        runs.append((training, tune_photos(data, method, **tuning), test))
    return tuple(runs)


NA = None  # not in the paper
# Label, runs; R@1, R@5, R@10 both ways of Flickr30K, then of COCO.
# fmt: off
ROWS = (
    ("CCA (VGG+HGLMM)", make_runs(fit_cca, "hglmm"),
     (34.4, 61.0, 72.3, 24.4, 52.1, 65.6, 37.7, 66.6, 79.1, 24.9, 58.8, 76.5)),
    ("CCA (Mean Vector)", make_runs(fit_cca, "w2v"),
     (24.8, 52.5, 64.3, 20.5, 46.3, 59.3, 33.2, 61.8, 75.1, 24.2, 56.4, 72.4)),
    ("CCA (VGG+HGLMM), tuned", make_runs(fit_cca, "hglmm", **CCA_TUNED), (NA,) * 12),
    ("CCA (Mean Vector), tuned", make_runs(fit_cca, "w2v", **CCA_TUNED), (NA,) * 12),
    ("Sim. Network (VGG+HGLMM)", make_runs(train_branches, "hglmm", "similarity_network"),
     (16.6, 38.8, 51.0, 7.4, 23.5, 33.3, 30.9, 61.1, 76.2, 14.0, 30.0, 37.8)),
    ("MMD-MSE (VGG+w2v)", make_runs(train_vectors, "w2v", "mmd_mse"),
     (35.3, 60.8, 72.8, 16.5, 40.2, 52.9, 42.9, 73.8, 84.4, 19.6, 50.2, 66.6)),
    ("Emb. Network (VGG+w2v)", make_runs(train_branches, "w2v", "embedding_network"),
     (35.7, 62.9, 74.4, 25.1, 53.9, 66.1, 40.7, 74.2, 85.3, 33.5, 68.7, 83.2)),
    ("Emb. Network (VGG+HGLMM)", make_runs(train_branches, "hglmm", "embedding_network"),
     (40.3, 68.9, 79.9, 29.7, 60.1, 72.1, 50.1, 79.7, 89.2, 39.6, 75.2, 86.9)),
    ("2WayNet (VGG+HGLMM)", (),
     (49.8, 67.5, NA, 36.0, 55.6, NA, 55.8, 75.2, NA, 39.7, 63.3, NA)),
    ("VSE++ (ResNet+GRU)", make_tuned_runs("vse++", {}, VSEPP_TUNING),
     (52.9, 80.5, 87.2, 39.6, 70.1, 79.5, 64.6, 90.0, 95.7, 52.0, 84.3, 92.0)),
    ("GXN (ResNet+GRU)", (),
     (56.8, NA, 89.6, 41.5, NA, 80.1, 68.5, NA, 97.9, 56.6, NA, 94.5)),
    ("SCO (ResNet+GRU)", (),
     (55.5, 82.0, 89.3, 41.1, 60.5, 80.1, 69.9, 92.9, 97.5, 56.7, 87.5, 94.8)),
    ("SCAN t-i (ResNet+GRU)", make_scan_runs("scan_t2i"),
     (61.8, 87.5, 93.7, 45.8, 74.4, 83.0, 70.9, 94.5, 97.8, 56.4, 87.0, 93.9)),
    ("SCAN i-t (ResNet+GRU)", make_scan_runs("scan_i2t_mean"),
     (67.9, 89.0, 94.4, 43.9, 74.2, 82.8, 69.2, 93.2, 97.5, 54.4, 86.0, 93.6)),
    ("MSE (VGG+w2v)", make_runs(train_vectors, "w2v", "mse"),
     (33.9, 61.3, 73.2, 15.9, 40.3, 52.8, 45.0, 76.5, 87.0, 21.3, 52.3, 68.1)),
    ("jWAE-MSE (VGG+w2v)", make_runs(train_vectors, "w2v", "jwae_mse"),
     (35.7, 61.6, 73.6, 17.3, 41.8, 55.3, 43.2, 75.1, 85.7, 21.5, 53.5, 69.3)),
    ("jWAE-MH (VGG+w2v)", make_runs(train_vectors, "w2v", "jwae_mh_vectors"),
     (35.4, 62.5, 74.4, 24.1, 50.4, 62.6, 44.2, 77.4, 87.7, 31.3, 66.0, 81.3)),
    ("jWAE-MSE (VGG+HGLMM)", make_runs(train_vectors, "hglmm", "jwae_mse"),
     (40.3, 66.3, 77.2, 20.3, 46.5, 58.9, 50.3, 79.4, 88.3, 25.2, 57.5, 73.3)),
    ("jWAE-MH (ResNet+GRU)", make_tuned_runs("jwae_mh", JWAE_RATE, JWAE_TUNING),
     (53.9, 82.2, 87.4, 40.7, 72.4, 81.9, 66.6, 91.4, 96.6, 53.1, 84.5, 92.0)),
    ("jWAE-MH+SCAN t-i (ResNet+GRU)", make_scan_runs("jwae_mh_scan"),
     (64.0, 89.4, 95.2, 47.1, 75.9, 84.0, 72.0, 94.5, 98.3, 57.1, 87.5, 94.1)),
    ("jWAE-MH+SCAN i-t (ResNet+GRU)", make_scan_runs("jwae_mh_scan_i2t"),
     (68.5, 89.6, 94.2, 44.2, 74.2, 83.2, 69.8, 93.3, 98.1, 54.6, 86.1, 93.2)),
)
# fmt: on
TABLE = Table(
    "jwae Table 3",
    (
        recalls("full", "Flickr30K"),
        recalls("folds5", "COCO, 1K, mean of five folds", run=1),
    ),
    tuple(Row(label, numbers, runs) for label, runs, numbers in ROWS),
    f8k=True,
    notes=(
        "The paper cites 2WayNet, GXN and SCO, which have no code here: they are published only.",
        "COCO: the paper says 1,000 test images, but VSE++'s and SCAN's rows are means of five "
        "folds, as are ours.",
        "The text says that jWAE-MH gains SCAN t-i 2.1 points of R@1 on COCO; 70.9 and 72.0 in the "
        "table are 1.1.",
        "SCO's R@5 from text to image on Flickr30K is printed as 60.5; the rows near it suggest "
        "about 70.",
        "VSE++'s recalls are those of its fine-tuned network (pmrl Table 2, ucmr Tables 1 and 3). "
        "Our VSE++ and our jWAE-MH on ResNet are therefore fine-tuned.",
        "CCA is Klein's, with his regularization of 1e-4. The tuned rows are ours: their "
        "regularization and size are chosen on dev, and they may change the order of the table.",
        "Eq. 7 is a mean over pairs, so all terms of MSE and jWAE-MSE count per item (25.6 is 0.2 "
        "times the batch). Read as printed, beside sums, Flickr8k's rsum falls from 143 to 46.",
        "MSE, jWAE on VGG and SCAN read, and reconstruct, features as the files have them. CCA, "
        "the Embedding Network and the Similarity Network l2-normalize them, and so does jWAE-MH "
        "on ResNet, as VSE++ does: there the weight 0.5 is of errors of unit vectors.",
        "jWAE-MH on SCAN trains at SCAN's learning rates, 2e-4 and on COCO 5e-4. Section 5.1 says "
        "1e-4 of jWAE.",
        "HGLMM vectors are reduced to 6,000 numbers, which the paper says of phrase localization "
        "only.",
        "That jWAE-MH takes the hardest negative is our choice. Eq. 1, which eq. 9 uses, admits "
        "the sum, too.",
        "Latents of MH lie on the sphere of radius sqrt(D), those of MSE, jWAE-MSE and MMD-MSE are "
        "as they come, as in the paper (on Flickr8k a BatchNorm takes the rsum of MSE from 147 to "
        "68, of jWAE-MSE from 117 to 74).",
        "The paper prints neither epochs, schedule and weight of MMD nor sizes of jWAE's layers "
        "and latents. Ours: 30, the rate divided by ten after 15; 128; 1024.",
    ),
)

if __name__ == "__main__":
    main(TABLE)
