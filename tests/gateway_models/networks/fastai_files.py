"""Write what fastai writes of a small classifier, with its own predictions: python fastai_files.py FOLDER.

frameworks/learner.pth is the file of one run, for where fastai is not installed; a Learner has paths of its machine.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from fastai.data.block import CategoryBlock
from fastai.data.transforms import Normalize, RandomSplitter, get_image_files, parent_label
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.vision.augment import Resize, aug_transforms
from fastai.vision.core import imagenet_stats
from fastai.vision.data import DataBlock, ImageBlock
from PIL import Image
from torch import manual_seed, nn

COLOURS = {"cornflower": (80, 100, 220), "poppy": (210, 40, 30), "sunflower": (230, 190, 40)}


def main(folder: Path) -> None:
    os.chdir(folder)
    pixels = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        Path("photos", name).mkdir(parents=True)
        for number in range(4):
            shape = (60 + 10 * number, 80, 3)
            noise = pixels.normal(0, 40, shape) + np.linspace(-60, 60, shape[1])[None, :, None]
            Image.fromarray(np.clip(noise + colour, 0, 255).astype(np.uint8)).save(f"photos/{name}/{number}.png")
    manual_seed(0)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_items=get_image_files,
        get_y=parent_label,
        splitter=RandomSplitter(0.5, seed=0),
        item_tfms=Resize(48),
        batch_tfms=[*aug_transforms(size=32), Normalize.from_stats(*imagenet_stats)],
    )
    loaders = block.dataloaders("photos", bs=4, num_workers=0)
    layers = (nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    learner = Learner(loaders, nn.Sequential(*layers, nn.Linear(8, 3)), loss_func=CrossEntropyLossFlat(), path=".")
    learner.remove_cbs(learner.cbs.filter(lambda each: type(each).__name__ == "ProgressCallback"))
    learner.fit(3, 0.05)
    learner.save("learner")
    learner.export("learner.pkl")
    images = sorted(get_image_files("photos"))
    answers, _ = learner.get_preds(dl=learner.dls.test_dl(images))
    Path("predictions.json").write_text(json.dumps(dict(zip(map(str, images), answers.tolist(), strict=True))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
