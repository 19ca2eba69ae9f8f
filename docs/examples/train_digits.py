"""Train a small network on a hundred handwritten digits, and write others as images: photos/calibration, photos/test.

It needs scikit-learn: make install EXTRAS=converters, or pip install '.[converters]'.
"""

from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()  # 1,797 scans of 8×8 pixels
torch.manual_seed(0)
order = torch.randperm(len(digits.target))
images, classes = torch.tensor(digits.images / 16)[order].float(), torch.tensor(digits.target)[order]
for number, (image, kind) in enumerate(zip(images, classes, strict=True)):
    if number >= 100:
        folder = Path("photos", "calibration" if number < 1000 else "test", str(int(kind)))
        folder.mkdir(parents=True, exist_ok=True)
        scan = Image.fromarray((255 * image).byte().numpy()).resize((32, 32), Image.Resampling.NEAREST)
        scan.save(folder / f"{number}.png")

pixels = nn.functional.interpolate(images[:100, None], size=32).repeat(1, 3, 1, 1)
pixels = (pixels - 0.5) / 0.25
model = nn.Sequential(
    *(nn.AvgPool2d(4), nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()),
    *(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(60):
    for batch in torch.arange(100).split(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels[batch]), classes[batch]).backward()
        optimizer.step()

any_batch = ({0: torch.export.Dim.DYNAMIC},)
torch.export.save(torch.export.export(model.eval(), (pixels[:2],), dynamic_shapes=any_batch), "digits.pt2")
Path("labels.txt").write_text("".join(f"{kind}\n" for kind in range(10)))
right = (model(pixels).argmax(1) == classes[:100]).float().mean()
print(f"digits.pt2 has {100 * right:.0f} % of its training images right")
