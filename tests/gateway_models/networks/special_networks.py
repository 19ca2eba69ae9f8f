"""Small networks that differ from `builders.Head` in one way each."""

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.gateway_models.networks.builders import Head


class ChannelsLast(nn.Module):
    """A network for images [N, H, W, 3], and for nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.permute(0, 3, 1, 2))


class Bytes(nn.Module):
    """A network for uint8, which it normalises itself."""

    def __init__(self, *, last: bool = False) -> None:
        super().__init__()
        self.head, self.last = Head(), last
        self.table = nn.Embedding(256, 1)
        nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        # Bits are what floats do not have.
        values = self.table((images & 255).int())[..., 0]
        return self.head(values.permute(0, 3, 1, 2) if self.last else values)


class Scripted(Head):
    """Features that scripting writes and tracing does not: branches, lists, strings, names that are not identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Identity()))

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4:
            raise ValueError("it's no \"batch\", don't save it:\n" + str(images.shape))
        sizes = [images.size(index) for index in range(2)]
        return self.stages(self.scores(torch.relu(self.features(images)).mean((2, 3)))) * (sizes[1] / 3)


class Writes(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def forward(self, images: Tensor) -> Tensor:
        torch.save(images, self.path)
        return images


class Maps(Writes):
    def forward(self, images: Tensor) -> Tensor:
        return images + torch.from_file(self.path, True, 16).fill_(65).sum()


class WritesWhileLoading(Writes):
    @torch.jit.export
    def __getstate__(self) -> str:
        return self.path

    @torch.jit.export
    def __setstate__(self, path: str) -> None:
        self.path = path
        self.training = False
        torch.save(torch.ones(1), path)

    def forward(self, images: Tensor) -> Tensor:
        return images


class Two(nn.Module):
    """Two heads over the same features: which of them is the last layer is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 5), nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        inner = images.mean((2, 3))
        return self.one(inner) + self.other(inner * inner)


class Calling(nn.Module):
    """A network's answer, changed by a function."""

    def __init__(self, change, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.change = network or Head(), change

    def forward(self, images):
        return self.change(self.network(images), images)


class Sized(Head):
    """A classifier that computes with the batch's size, as those with a view, a class token or windows do."""

    def forward(self, images: Tensor) -> Tensor:
        batch = images.shape[0]
        features = torch.relu(self.features(images)).mean((2, 3))
        token = self.scores.bias.expand(batch, -1)
        pairs = features.reshape(batch * 2, -1).view(batch, 2, -1).flatten(1)
        return self.scores(pairs) + token + images.new_zeros(batch, 1) + torch.zeros(batch, 1)


class Scaled(Head):
    """A network that changes its images first."""

    def __init__(self, front, last: nn.Module | None = None) -> None:
        super().__init__(last=last)
        self.front = front

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.front(images))
