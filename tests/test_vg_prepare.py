"""vg_experiments.prepare: the choice of crops against a slow reference, what is dropped and why, and what is
refused."""
import hashlib
import json
import os
import random

import numpy as np
import pytest
from PIL import Image

from cli import InputError
from data import read_split
from tests.helpers import refused
from vg_experiments import prepare

IMAGES, THRESHOLDS = 60, (10, 20, 30, 40, 50)


def annotations(folder, seed=0):
    """Random annotation files with every irregularity: both spellings, COCO's images, no size, boxes over the edge, far
    outside, flat, fractions of a pixel, equal areas, and phrases that are empty or null."""
    rng, listed, told = random.Random(seed), [], []
    for k in range(IMAGES):
        number, (w, h) = 1000 - 7 * k, (rng.randint(80, 300), rng.randint(80, 300))
        listed.append({("image_id" if k % 2 else "id"): number, "url": f"https://x/VG_100K_2/{number}.jpg", "width": w,
                       "height": h if k % 13 else 0, "coco_id": 5 if k % 6 == 0 else None})
        regions = []
        for j in range(0 if k % 10 == 3 else rng.randint(1, 30)):
            box = [rng.randint(-20, w), rng.randint(-20, h), rng.randint(-2, w // 2), rng.randint(-2, h // 2)]
            if j % 5 == 0:                                  # equal areas
                box[2:] = [40, 30]
            if j % 11 == 0:
                box[0] += 0.5
            regions.append({("region_id" if k % 3 else "id"): 100 * number + j, "image_id": number, **dict(zip(
                ("x", "y", "width", "height"), box)), "phrase": rng.choice(["", None, " "] + [f"thing {j} é."] * 20)})
        told.append({("id" if k % 4 else "image_id"): number, "regions": regions})
    told.append({"id": 5, "regions": told[1]["regions"]})   # of an image that is not listed
    rng.shuffle(told)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in listed:
        number = entry.get("id", entry.get("image_id"))
        (folder / "images" / f"{number}.jpg").write_bytes(b"")
    json.dump(listed, open(folder / "image_data.json", "w", encoding="utf-8"))
    json.dump(told, open(folder / "region_descriptions.json", "w", encoding="utf-8"), ensure_ascii=False)
    return listed, told


def iou(a, b):
    w = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    h = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(w, 0) * max(h, 0)
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def slow(listed, told):
    """({image id: (W, H, [(box, region id, phrase)] in the file's order)}, counts) from the definitions."""
    counts, images = dict.fromkeys("coco size other flat outside empty kept clipped none".split(), 0), {}
    for entry in listed:
        number = entry.get("image_id", entry.get("id"))
        if entry["coco_id"] is not None:
            counts["coco"] += 1
        elif not entry["height"]:
            counts["size"] += 1
        else:
            images[number] = (entry["width"], entry["height"], [])
    for entry in told:
        number = entry.get("image_id", entry.get("id"))
        if number not in images:
            counts["other"] += len(entry["regions"])
            continue
        w, h, kept = images[number]
        for r in entry["regions"]:
            box = [int(np.rint(r[key])) for key in ("x", "y", "width", "height")]
            x1, y1, x2, y2 = max(box[0], 0), max(box[1], 0), min(box[0] + box[2], w), min(box[1] + box[3], h)
            phrase = (r["phrase"] or "").strip()
            why = ("flat" if min(box[2:]) <= 0 else "outside" if x2 <= x1 or y2 <= y1 else "empty" if not phrase
                   else "kept")
            counts[why] += 1
            if why == "kept":
                clipped = [x1, y1, x2 - x1, y2 - y1]
                counts["clipped"] += clipped != box
                kept.append((clipped, r.get("region_id", r.get("id")), phrase))
    counts["none"] = sum(not kept for _, _, kept in images.values())
    return images, counts


def ten(w, h, regions, fits):
    return sorted((r for r in regions if fits(100 * r[0][2] * r[0][3], w * h)), key=lambda r: -r[0][2] * r[0][3])[:10]


def slow_triplet(w, h, regions, percent):
    chosen = ten(w, h, regions, lambda share, size: share < percent * size)
    if len(chosen) < 2:
        return None
    a, b = chosen[0], min(chosen[1:], key=lambda r: iou(chosen[0][0], r[0]))
    corners = [(r[0][0], r[0][1], r[0][0] + r[0][2], r[0][1] + r[0][3]) for r in (a, b)]
    low, high = [min(c[k] for c in corners) for k in (0, 1)], [max(c[k] for c in corners) for k in (2, 3)]
    plain = [r[2].rstrip(" .") for r in (a, b)]
    return {"regions": [a[1], b[1]], "a": a[0], "b": b[0], "c": [*low, high[0] - low[0], high[1] - low[1]],
            "iou": round(iou(a[0], b[0]), 4), "caption_a": plain[0], "caption_b": plain[1],
            "caption_c": f"{plain[0]} and {plain[1]}"}


def slow_crops(w, h, regions, limit):
    taken = []
    for r in ten(w, h, regions, lambda share, size: share <= 20 * size):
        if len(taken) < 3 and all(iou(r[0], other[0]) <= limit for other in taken):
            taken.append(r)
    return taken if len(taken) == 3 else None


def in_order(ids, seed, what):
    return sorted(ids, key=lambda number: hashlib.sha256(f"{seed}-{what}-{number}".encode()).digest())


def test_the_manifest_is_that_of_the_slow_reference(tmp_path):
    seed = 1
    listed, told = annotations(tmp_path, seed)
    images, counts = slow(listed, told)
    found = prepare.make_manifest(str(tmp_path), images=15, wholes=12, thresholds=THRESHOLDS, seed=seed, max_iou=0.3)
    names = dict(coco="images_in_coco", size="images_without_size", other="regions_of_other_images",
                 kept="regions_kept", flat="regions_without_area", outside="regions_outside",
                 empty="regions_without_phrase", clipped="regions_clipped", none="images_without_regions")
    assert {key: found["counts"][name] for key, name in names.items()} == counts and min(counts.values()) > 0
    each = {number: [slow_triplet(*image, percent) for percent in THRESHOLDS] for number, image in images.items()}
    for k, percent in enumerate(THRESHOLDS):
        assert found["counts"][f"images_with_triplet_{percent}"] == sum(t[k] is not None for t in each.values())
    usable = in_order([number for number, t in each.items() if None not in t], seed, "triplets")
    assert found["counts"]["images_with_all_triplets"] == len(usable) > 15
    for k, percent in enumerate(THRESHOLDS):
        assert found["triplets"][str(percent)] == [{"image": number, **each[number][k]} for number in usable[:15]]
        assert found["counts"][f"triplets_with_b_inside_a_{percent}"] == sum(each[n][k]["a"] == each[n][k]["c"]
                                                                              for n in usable[:15])
    three = {number: slow_crops(*image, 0.3) for number, image in images.items()}
    chosen = in_order([number for number, crops in three.items() if crops], seed, "wholes")
    assert found["counts"]["images_with_three_crops"] == len(chosen) and len(found["wholes"]) == min(12, len(chosen))
    for whole, number in zip(found["wholes"], chosen):
        crops = three[number]
        assert whole["image"] == number and whole["crops"] == [r[0] for r in crops]
        assert whole["regions"] == [r[1] for r in crops] and whole["captions"] == [r[2].rstrip(" .") for r in crops]
        assert whole["description"] == " and ".join(whole["captions"])
    assert set(found["images"]) == {str(i) for i in usable[:15]} | {str(i) for i in chosen[:12]}
    assert all(entry["file"] == f"images/{number}.jpg" for number, entry in found["images"].items())


def test_missing_photos_are_named(tmp_path):
    annotations(tmp_path)
    gone = [t["image"] for t in prepare.make_manifest(str(tmp_path), images=10, wholes=5)["triplets"]["10"]][2:4]
    for number in gone:
        os.remove(tmp_path / "images" / f"{number}.jpg")
    with pytest.raises(InputError, match=rf"2 of the 10 photos .* not in .*{gone[0]}, {gone[1]}; put the photos in"):
        prepare.make_manifest(str(tmp_path), images=10, wholes=5)


def test_what_cannot_work_is_one_sentence(tmp_path, capsys):
    annotations(tmp_path)
    words = ["--vg", tmp_path, "--output", tmp_path / "m.json"]
    refused(capsys, prepare.main, [*words, "--thresholds", "0.01", "50"], "no image has two regions smaller than 0.01")
    refused(capsys, prepare.main, [*words, "--thresholds", "101"], "'101' is not a percentage")
    entry = '{"id": 993, "regions": [{"id": 1, "x": 1e400, "y": 0, "width": 1, "height": 1, "phrase": "a"}]}'
    sound = entry.replace("1e400", "0")
    told, listed = tmp_path / "region_descriptions.json", tmp_path / "image_data.json"
    for path, broken, message in (
            (told, '[{"id"', "is not JSON"), (told, "{}", "not a list of im"),
            (told, f"[{entry}]", "not as Visual Genome ships.*infinity"),
            (told, f"[{sound.replace('width', 'w')}]", "not as Visual Genome ships.*width"),
            (told, f"[{sound}, {sound}]", "lists the regions of image 993 twice"),
            (listed, "[]", "none of its 0 images"), (listed, "[1]", "no whole number under image"),
            (listed, None, "there is no file .*image_data.json")):
        path.unlink() if broken is None else path.write_text(broken)
        refused(capsys, prepare.main, words, message)
    outside = {"format": 1, "folder": str(tmp_path), "images": {"1": {"file": "../x.jpg"}}}
    for manifest, message in (("1", "not a manifest of format 1.*; write one"),
                              ('{"format": 0}', "not a manifest of format 1"), (json.dumps(outside), "x.jpg")):
        (tmp_path / "m.json").write_text(manifest)
        with pytest.raises(InputError, match=message):
            prepare.load_manifest(str(tmp_path / "m.json"))


def test_photos_with_captions_give_a_manifest(demo_path, tmp_path, capsys):
    """A and B are two captions of the photo, another pair at each threshold; boxes are drawn."""
    words = ["--data_path", demo_path, "--data_name", "demo", "--images", "12"]
    for name in ("drawn", "again"):
        prepare.main([*words, "--output", str(tmp_path / f"{name}.json")])
    assert (tmp_path / "drawn.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    manifest = prepare.load_manifest(str(tmp_path / "drawn.json"))
    assert manifest["wholes"] == [] and len(manifest["triplets"]["10"]) > 5
    split = read_split(demo_path, "demo", "test")
    for k, (percent, triplets) in enumerate(manifest["triplets"].items()):
        for t in triplets:
            own = [split.captions[m].rstrip(" .") for m in np.flatnonzero(split.caption_image == t["image"])]
            assert (t["caption_a"], t["caption_b"]) == (own[k % 5], own[(k + 1) % 5])
            photo = manifest["images"][str(t["image"])]
            size = Image.open(os.path.join(manifest["folder"], photo["file"])).size
            assert (photo["width"], photo["height"]) == size
            assert 100 * t["a"][2] * t["a"][3] < float(percent) * size[0] * size[1]
            assert all(x >= 0 and y >= 0 and x + w <= size[0] and y + h <= size[1]
                       for x, y, w, h in (t[letter] for letter in "abc"))
    refused(capsys, prepare.main, [*words[:2], "--data_name", "demo_precomp", "--output", tmp_path / "x.json"],
            "crops are cut from photos")
