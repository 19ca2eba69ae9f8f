"""Which versions of a model answer: the record in its repository, which every gateway follows."""

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter

FOLLOW_SECONDS = 5.0
"""Every gateway follows a change within this time."""
_PART = re.compile(r"([1-9][0-9]{0,8})(?:=([0-9]{1,4}))?")
_HASH_RANGE = 2**64

Number = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")]
Share = Annotated[int, Field(ge=1, le=1_000)]
Percent = Annotated[int, Field(ge=1, le=100)]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The versions of one model that answer, the shadow versions, since when, and who changed it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    shares: Annotated[dict[Number, Share], Field(min_length=1)]
    """The versions that answer requests which name none, each with its share of them, in the order of their numbers."""
    shadow: dict[Number, Percent] = field(default_factory=dict)
    """The versions that also classify a percentage of the images, after the answer."""
    since: AwareDatetime | None = None
    by: str = ""

    @classmethod
    def of(cls, versions: Sequence[str], shadows: Sequence[str] = (), *, by: str = "") -> Self:
        """From now on VERSION, or several VERSION=SHARE, and shadows VERSION[=PERCENT]; raises ValueError."""
        if len(versions) > 1 and not all("=" in each for each in versions):
            msg = f"{' '.join(versions)}: several versions need a share each, such as 1=90 2=10"
            raise ValueError(msg)
        shares, shadow = _numbers(versions, most=1_000), _numbers(shadows, most=100)
        if not shares:
            msg = "name the version that answers, or several with shares"
            raise ValueError(msg)
        if len(shares) == 1:
            shares = dict.fromkeys(shares, 100)
            if useless := shares.keys() & shadow.keys():
                msg = f"version {useless.pop()} gives every answer: as a shadow it would be compared with itself"
                raise ValueError(msg)
        return cls(shares, shadow, datetime.now(UTC).replace(microsecond=0), by)

    @classmethod
    def read(cls, text: str) -> Self:
        """From JSON, as `text` writes it; raises ValidationError."""
        return _TYPE.validate_json(text)  # type: ignore[return-value]

    @property
    def text(self) -> str:
        """As JSON, for a parameter of the model's configuration."""
        return _TYPE.dump_json(self, ensure_ascii=True).decode()

    @property
    def version(self) -> str:
        """The version with the largest share: it answers where the shares do not apply."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions that it needs."""
        return tuple(dict.fromkeys((*self.shares, *self.shadow)))

    def share(self, version: str) -> float:
        """The share of a version, from 0 to 1."""
        return self.shares.get(version, 0) / sum(self.shares.values())

    def choose(self, model_name: str, client: str) -> str:
        """A version by its share of the requests: always the same for one client, random without a client ("").

        A client's position among the shares is a hash, so that every gateway chooses the same version, and a larger
        share moves only the clients that it gains.
        """
        if client:
            digest = hashlib.sha256(f"{model_name}\0{client}".encode()).digest()
            position = int.from_bytes(digest[:8], "big") / _HASH_RANGE
        else:
            position = random.random()  # noqa: S311  # no secret
        rest = position * sum(self.shares.values())
        for version, share in self.shares.items():
            rest -= share
            if rest < 0:
                return version
        return list(self.shares)[-1]  # only by rounding


_TYPE = TypeAdapter(Rollout)
_BEFORE = datetime.min.replace(tzinfo=UTC)


def newest(rollouts: Iterable[Rollout]) -> Rollout | None:
    """The last change, where servers do not agree yet."""
    return max(rollouts, key=lambda rollout: rollout.since or _BEFORE, default=None)


def _numbers(texts: Sequence[str], *, most: int) -> dict[str, int]:
    """Parse VERSION[=NUMBER]; the number is 100 where it is left out."""
    found: dict[str, int] = {}
    for text in texts:
        match = _PART.fullmatch(text)
        number = int(match[2] or 100) if match else 0
        if match is None or not 1 <= number <= most:
            msg = f"{text!r} is not a version, such as 2, or a version with a number from 1 to {most}, such as 2=10"
            raise ValueError(msg)
        if match[1] in found:
            msg = f"version {match[1]} is named twice"
            raise ValueError(msg)
        found[match[1]] = number
    return dict(sorted(found.items(), key=lambda each: int(each[0])))
