"""Print the first losses of all methods on a device beside those on the CPU.

    python tests/losses_on_device.py cuda losses.csv        # three steps each, about two minutes

The demo at 48 images, small models, the same weights and batches on both. Methods that draw random
numbers on the device (dropout, noise, samples) have other losses there; the others should agree to
1e-5 at the first step. Prints one line a method and exits with 1 where a method cannot train there.
"""

import contextlib
import csv
import io
import os
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import train
import utils
from methods import METHODS, PRETRAINED
from tests import golden

STEPS = 3
SIZES = (
    "--embed_size 32 --word_dim 16 --batch_size 24 --vocab_threshold 1 --workers 0 "
    "--data_path data --vocab_path none"
)


def list_commands() -> dict[str, str]:
    """Options of a small training of each method, and of photos through a network, by name."""
    commands = {}
    photos = "--data_name demo --cnn_type resnet18 --cnn_weights resnet18.pth --crop_size 64"
    commands["photos"] = photos
    commands["photos, fine-tuned"] = f"{photos} --finetune --freeze_bn"

    for name in sorted(METHODS):
        needs = METHODS[name].needs
        if needs == PRETRAINED:
            continue  # tests/test_pretrained.py has them
        data = "demo_precomp"
        if "regions" in needs:
            data = "demo_region_precomp"
        features = ""
        if "caption" in needs:
            features = "--text_features bag"
        sizes = golden.SIZES.get(name, "")
        commands[name] = f"--method {name} --data_name {data} {sizes} {features}"
    return commands


def write_bags() -> None:
    """Write counts of words as features of captions, which need no word vectors."""
    import numpy as np

    texts = {}
    for split in ("train", "dev", "test"):
        with open(f"data/demo_precomp/{split}_caps.txt", encoding="utf-8") as file:
            texts[split] = file.read().splitlines()
    words = sorted(set(" ".join(texts["train"]).split()))
    for split, captions in texts.items():
        counts = [[caption.split().count(word) for word in words] for caption in captions]
        np.save(f"data/demo_precomp/{split}_bag.npy", np.array(counts, np.float32))


def take_steps(command: str, device: str) -> list[float]:
    """Losses of the first steps on a device."""
    opt = train.parse_args([*SIZES.split(), *command.split(), "--device", device])
    run = train.Training(opt, None, torch.device(device))
    run.model.train()
    batches = run.batches(run.order(0))
    losses = [sum(run.step(next(batches).to(run.device)).values()) for _ in range(STEPS)]
    batches.close()
    return losses


def compare_methods(device: str, target: str) -> int:
    """Write a line for each method to a CSV file. Returns how many cannot train on the device."""
    failed = 0
    with open(target, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        heads = [f"CPU, step {step}" for step in range(1, STEPS + 1)]
        heads += [f"{device}, step {step}" for step in range(1, STEPS + 1)]
        table.writerow(["method", "relative difference at step 1", *heads])

        for name, command in list_commands().items():
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    on_cpu = take_steps(command, "cpu")
                    on_device = take_steps(command, device)
            except Exception as error:
                failed += 1
                traceback.print_exc()
                print(f"{name}: failed: {str(error)[:200]}", flush=True)
                table.writerow([name, f"failed: {str(error)[:200]}"])
                continue

            difference = abs(on_device[0] - on_cpu[0]) / abs(on_cpu[0])
            print(f"{name}: {difference:.1e}", flush=True)
            losses = [f"{x:.6g}" for x in on_cpu + on_device]
            table.writerow([name, f"{difference:.1e}", *losses])
            file.flush()
    return failed


def main() -> None:
    device = sys.argv[1]
    target = os.path.abspath(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        golden.write_inputs()
        write_bags()
        failed = utils.run("losses_on_device", compare_methods, device, target)
        os.chdir("/")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
