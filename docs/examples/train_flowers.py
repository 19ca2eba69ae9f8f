"""Draw flowers, train a small network of torchvision to classify five kinds, and save its weights.

python train_flowers.py EPOCHS NAME    # writes NAME.pth (a state dict), labels.txt, and photos/train, photos/test
"""

import math
import random
import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.models import shufflenet_v2_x0_5
from torchvision.transforms import v2

KINDS = {  # petals, their colour, the colour of the middle
    "cornflower": (9, "royalblue", "navy"),
    "daisy": (13, "white", "gold"),
    "poppy": (4, "crimson", "black"),
    "sunflower": (15, "gold", "saddlebrown"),
    "violet": (8, "slateblue", "navy"),
}


def draw(kind: str, seed: str) -> Image.Image:
    """A drawing of 160 × 120 pixels."""
    petals, colour, middle = KINDS[kind]
    rng = random.Random(kind + seed)  # noqa: S311  # no secret
    image = Image.new("RGB", (160, 120), rng.choice(["darkgreen", "olivedrab", "tan", "slategray"]))
    pen = ImageDraw.Draw(image)
    x, y, size = rng.uniform(50, 110), rng.uniform(45, 75), rng.uniform(20, 40)
    for petal in range(petals):
        angle = math.tau * petal / petals + rng.uniform(-0.2, 0.2)
        px, py, r = x + size * math.cos(angle), y + size * math.sin(angle), size * 2.4 / petals + 3
        pen.line([x, y, px, py], fill=colour, width=round(2 * r))
        pen.ellipse([px - r, py - r, px + r, py + r], fill=colour)
    pen.ellipse([x - size / 3, y - size / 3, x + size / 3, y + size / 3], fill=middle)
    return image


def main(epochs: int, name: str) -> None:
    """Train, and write the files."""
    for part, count in (("train", 40), ("test", 20)):
        for kind in KINDS:
            folder = Path("photos", part, kind)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                draw(kind, f"{part}{number}").save(folder / f"{number}.jpg", quality=90)

    torch.manual_seed(0)
    prepare = v2.Compose(
        [
            v2.Resize(72),
            v2.CenterCrop(64),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    photos = ImageFolder("photos/train", prepare)
    model = shufflenet_v2_x0_5(num_classes=len(photos.classes))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(epochs):
        for images, classes in torch.utils.data.DataLoader(photos, 10, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), classes).backward()
            optimizer.step()

    torch.save(model.state_dict(), f"{name}.pth")
    Path("labels.txt").write_text("\n".join(photos.classes) + "\n")
    print(f"{name}.pth classifies {', '.join(photos.classes)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
