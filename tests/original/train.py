"""The command line, and the schedule (see model.py)."""

import argparse

import tensorboard_logger

import data
from evaluation import encode_data, i2t, t2i
from model import VSE

NUMBERS = {
    "margin": 0.2,
    "embed_size": 1024,
    "word_dim": 300,
    "batch_size": 128,
    "lr_update": 15,
    "learning_rate": 0.0002,
    "grad_clip": 2.0,
}


def main():
    parser = argparse.ArgumentParser()
    for name, value in NUMBERS.items():
        parser.add_argument("--" + name, type=type(value), default=value)
    for name in ("max_violation", "use_abs", "no_imgnorm"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--measure", default="cosine")
    parser.add_argument("--data_name")
    opt = parser.parse_args()
    tensorboard_logger.configure("runs")
    model = VSE(opt)
    print(encode_data(model, data.open_annotations("captions.json")), i2t, t2i)


def adjust_learning_rate(opt, optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = opt.learning_rate * 0.1 ** (epoch / opt.lr_update)
